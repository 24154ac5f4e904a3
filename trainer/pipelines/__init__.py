"""The order of the stages of a job that trains. They run in this process, as Prefect tasks in a worker, or are only
looked at (`explain`).
"""
