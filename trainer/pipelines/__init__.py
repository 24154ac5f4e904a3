"""What follows what for a job that trains, and who carries it out: this process, one a stage, or nobody, who only
looks.
"""
