"""Who carries units of work: shards, encoded pieces of labelled data, and the ranks of training and evaluation.

    executors.py        what the work sees of whoever carries its units, and which workers belong together
    ray_cluster.py      joining a Ray cluster, and what it has room for
    consistency.py      whether its nodes run the same programs, and see the same store
    ray_tasks.py        units as Ray's tasks
    ray_ranks.py        ranks as workers of Ray Train

Processes of this machine are started where they are needed: those that tokenize by `trainer.data.shard_building`, ranks
by torchrun, which `trainer.pipelines.worker` calls. What is computed is the same, to the last byte: an engine only says
where. Ray is loaded only by a job whose engine it is.
"""
