"""Engines, which run units of work: shards, encoded pieces of labelled data, and the ranks of training and evaluation.

    executors.py        the interface between work and engines, and groups of workers
    ray_cluster.py      joining a Ray cluster, and its resources
    consistency.py      checks that its nodes run the same programs and share the store
    ray_tasks.py        units as Ray tasks
    ray_ranks.py        ranks as workers of Ray Train

Local processes are started where they are needed: tokenizing workers by `trainer.data.shard_building`, ranks by
torchrun, which `trainer.pipelines.worker` calls. Results are identical to the last byte with every engine. Ray is
imported only by a job with the Ray engine.
"""
