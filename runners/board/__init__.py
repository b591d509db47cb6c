"""The board: one page that shows experiments while they run, from their files alone, without W&B.

`trial_reading` reads one trial, `experiment_folder` an experiment, again and again; `setting_curve` takes the mean over
seeds, `content` is all that the page shows, `page` the page itself, `server` its server.
"""
