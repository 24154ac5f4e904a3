"""The order of the stages of training jobs. Stages run in this process or as Prefect tasks, or are only explained."""
