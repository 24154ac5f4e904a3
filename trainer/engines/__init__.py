"""Who carries units of work: shards, encoded pieces of labelled data, and the ranks of training and evaluation.

    carriers.py      what the work sees of whoever carries its units
    ray_cluster.py   joining a Ray cluster
    alike.py         whether its nodes run the same programs, and see the same store
    room.py          what it has room for
    ray_tasks.py     units as Ray's tasks
    ray_ranks.py     ranks as workers of Ray Train
    desk.py          where tasks and workers say how far they are, and ask whether to stop
    groups.py        which workers belong together, and whether a group is gone

Processes of this machine are started where they are needed: those that tokenize by `trainer.data.shard_building`, ranks by
torchrun, which `trainer.child` calls. What is computed is the same, to the last byte: an engine only says where. Ray is loaded
only by a job whose engine it is.
"""
