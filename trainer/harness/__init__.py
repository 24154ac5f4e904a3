"""What lm-eval, the community's harness, measures of a model: tasks of one's own, those that come with it, and their figures.

tasks.py       the YAML files and local data of tasks of one's own, read without lm-eval
measured.py    what a measurement is named by, and finding one that was made of the same
loading.py     loading tasks as lm-eval does, before training and before measuring; needs lm-eval
trial.py       asking some examples of them before training, without a model; needs lm-eval
warned.py      what lm-eval warns of
measuring.py   the stage: lm-eval on a model of the store; needs lm-eval
"""
