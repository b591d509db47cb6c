"""Checks of pictures: nothing leaves the page, and no parts meet."""


def overlapping(figure):
    """The parts of a picture that leave it or meet, in words."""
    figure.draw_without_rendering()
    shown = [text for text in figure.texts if text.get_visible() and text.get_text()]
    labels = [label for axes in figure.axes for label in (axes.xaxis.label, axes.yaxis.label) if label.get_text()]
    ticks = [tick.label1 for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for tick in axis._update_ticks()]
    parts = [(part, part.get_window_extent()) for part in (*shown, *figure.legends, *figure.axes, *labels)]
    inside = [*parts, *((tick, tick.get_window_extent()) for tick in ticks if tick.get_text())]
    width, height = figure.bbox.width, figure.bbox.height
    out = [
        f"{part} is cut off" for part, box in inside if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height
    ]
    return out + [
        f"{one} meets {other}"
        for i, (one, box) in enumerate(parts)
        for other, another in parts[i + 1 :]
        if box.overlaps(another)
    ]
