/* The search of `Acquisition` in a box, one function after another. Arrays are contiguous and of doubles. */

#include "screening.h"

typedef struct {
    long D, M, P;
    long functions;        /* rows of the result */
    long maps, weighted;   /* rows of the maps and of the weights; 1 if all functions share them */
    long a, b;             /* candidates: all pairs of a points in the first half of the axes and b in the other */
    long parts[MOST_AXES]; /* number of parts of each axis; their product is P */
} Sizes;

enum { MOST_CELLS = 64 };

typedef struct {
    float value;
    long candidate;
} Best;

/* The best candidate of each cell, best first; returns their number, at most n. */
static long best_of_cells(const Sizes *sizes, const Product *product, long cells, long n, Best *best, float *smallest)
{
    const long a = sizes->a, b = sizes->b, side = sizes->D > 1 ? cells : cells * cells;
    const long rows = a < side ? a : side, columns = b < side ? b : side, high = a / rows, wide = b / columns;
    long found = 0;
    *smallest = INFINITY;
    for (long cell = 0; cell < rows * columns; cell++) {
        Best top = {-INFINITY, cell / columns * high * b + cell % columns * wide};
        for (long i = cell / columns * high; i < (cell / columns + 1) * high; i++)
            for (long j = cell % columns * wide; j < (cell % columns + 1) * wide; j++) {
                /* with a single axis, the points are the columns of a product with one row */
                float value = sizes->D > 1 ? product->values[i * product->width + product->place[j]]
                                           : product->values[product->place[i]];
                if (value > top.value)
                    top = (Best){value, i * b + j};
                *smallest = value < *smallest ? value : *smallest;
            }
        long at = found;
        for (; at > 0 && best[at - 1].value < top.value; at--)
            if (at < n)
                best[at] = best[at - 1];
        if (at < n)
            best[at] = top;
        found += found < n;
    }
    return found;
}

/* Sets the point, region and bounds of a start; returns whether it lies less than h from a bound. */
static int begin(const Sizes *sizes, const Rules *rules, const double *left, const double *right, long candidate,
                 double h, Start *start, long *region)
{
    const long D = sizes->D, k = (D + 1) / 2;
    int near = 0;
    *region = 0;
    for (long d = 0; d < D; d++) {
        long parts = sizes->parts[d];
        double u = d < k ? left[candidate / sizes->b * k + d] : right[candidate % sizes->b * (D - k) + d - k];
        long cell = part_of(u, parts);
        *region = *region * parts + cell;
        start->lower[d] = cell == 0 ? 0.0 : (double)cell / (double)parts;
        start->upper[d] = cell == parts - 1 ? 1.0 : (double)(cell + 1) / (double)parts - rules->edge;
        start->state.x[d] = u;
        near |= u - start->lower[d] < h || start->upper[d] - u < h;
    }
    return near;
}

/* The maximiser of the function whose values at the candidates lie in `product`. */
static void search(const Sizes *sizes, const Rules *rules, const Product *product, const Map *map,
                   const double *weights, double length, const double *left, const double *right, Start *starts, double *out)
{
    const long D = sizes->D;
    Best best[MOST_CELLS];
    double points[MOST_CELLS][MOST_AXES];
    long region[MOST_CELLS], climbing = 0;
    float smallest;
    const long most = 1 + rules->n_starts < MOST_CELLS ? 1 + rules->n_starts : MOST_CELLS;
    const long n = best_of_cells(sizes, product, rules->cells, most, best, &smallest);
    const double h = pow((double)(sizes->a * sizes->b), -1.0 / (double)D), steps = h / length;
    const double spread = (double)(best[0].value - smallest);
    for (long i = 0; i < n; i++) {
        Start *start = &starts[climbing];
        int near = begin(sizes, rules, left, right, best[i].candidate, h, start, &region[i]), distinct = 1;
        for (long d = 0; d < D; d++)
            points[i][d] = start->state.x[d];
        for (long j = 0; j < i && distinct; j++) {
            double apart[MOST_AXES];
            for (long d = 0; d < D; d++)
                apart[d] = points[i][d] - points[j][d];
            distinct = region[i] != region[j] || length_of(apart, D) > rules->apart * length;
        }
        double lost = spread * steps * (rules->gain * steps + (near ? rules->border : 0.0));
        start->weight = weights + region[i] * map->M;
        climbing += distinct && (double)best[i].value >= (double)best[0].value - lost;
    }
    ascend(map, starts, climbing, length, rules);
    const double *found = points[0];
    double value = INFINITY;
    for (long i = 0; i < climbing; i++)
        if (starts[i].state.value < value) {
            value = starts[i].state.value;
            found = starts[i].state.x;
        }
    for (long d = 0; d < D; d++)
        out[d] = found[d];
}

/* Sets phases and slopes in half turns. Padding features have a cosine of 0 at every point. */
static void set_map(Map *map, long M, const double *frequencies, const double *phases)
{
    for (long m = 0; m < map->M; m++) {
        map->phase[m] = m < M ? phases[m] / PI : 0.5;
        for (long d = 0; d < map->D; d++)
            map->slope[d * map->M + m] = m < M ? frequencies[m * map->D + d] / PI : 0.0;
    }
}

/* Scales the weights to norm 1 and pads them, P x padded M. */
static void set_weights(const Sizes *sizes, long padded, const double *weights, double *out)
{
    double total = 0.0;
    for (long k = 0; k < sizes->P * sizes->M; k++)
        total += weights[k] * weights[k];
    double norm = sqrt(total);
    norm = norm < DBL_MIN ? DBL_MIN : norm;
    for (long i = 0; i < sizes->P; i++)
        for (long m = 0; m < padded; m++)
            out[i * padded + m] = m < sizes->M ? weights[i * sizes->M + m] / norm : 0.0;
}

/* Sets the candidates and their regions; rows and columns of the product are points in the two halves of the axes. */
static void set_candidates(const Sizes *sizes, const double *left, const double *right, Memory *memory, Product *product)
{
    const long k = (sizes->D + 1) / 2;
    const Half first = {sizes->a, k, 0, left, NULL, 1}, others = {sizes->b, sizes->D - k, k, right, NULL, 1};
    product->rows = sizes->D > 1 ? first : others;
    product->columns = sizes->D > 1 ? others : first;
    product->rows.region = array(memory, product->rows.n, sizeof(long));
    product->columns.region = array(memory, product->columns.n, sizeof(long));
    product->place = array(memory, product->columns.n, sizeof(long));
    product->first = array(memory, sizes->P + 1, sizeof(long));
    if (memory->failed)
        return;
    find_regions(&product->rows, sizes->parts);
    find_regions(&product->columns, sizes->parts);
    place_columns(product);
    product->padded_rows = up_to(product->rows.n, FLOATS);
    const long rows = product->padded_rows, width = product->width;
    product->row_points = doubles(memory, MOST_AXES * rows);
    product->column_points = doubles(memory, MOST_AXES * width);
    product->p = floats(memory, 2 * sizes->M * rows);
    product->left = floats(memory, 2 * sizes->M * rows);
    product->q = floats(memory, 2 * sizes->M * width);
    product->right = floats(memory, 2 * sizes->M * width);
    product->scale = floats(memory, rows * width);
    product->values = floats(memory, rows * width + rows + width);
    if (memory->failed)
        return;
    transpose(&product->rows, NULL, rows, product->row_points);
    transpose(&product->columns, product->place, width, product->column_points);
}

/* The maximiser of each function, functions x D. frequencies: maps x M x D; phases: maps x M; weights: weighted x P x
   M; lengths: functions; left: a x D1, right: b x D2. Returns 0, or 1 if memory is short. */
int box_search(const Sizes *sizes, const Rules *rules, const double *frequencies, const double *phases,
               const double *weights, const double *lengths, const double *left, const double *right, double *out)
{
    const long D = sizes->D, M = sizes->M, padded = up_to(M, DOUBLES);
    Memory memory = {0};
    Product product;
    Map map = {D, padded, doubles(&memory, padded), doubles(&memory, padded * D), doubles(&memory, padded)};
    double *normed = doubles(&memory, padded * sizes->P);
    Start *starts = array(&memory, MOST_CELLS, sizeof(Start));
    set_candidates(sizes, left, right, &memory, &product);
    if (memory.failed)
        return release(&memory);
    for (long f = 0; f < sizes->functions; f++) {
        if (f == 0 || sizes->maps > 1) {
            set_map(&map, M, frequencies + f * M * D, phases + f * M);
            prepare(&product, &map, M);
        }
        if (f == 0 || sizes->weighted > 1)
            set_weights(sizes, padded, weights + f * sizes->P * M, normed);
        screen(&product, &map, M, normed);
        search(sizes, rules, &product, &map, normed, lengths[f], left, right, starts, out + f * D);
    }
    release(&memory);
    return 0;
}
