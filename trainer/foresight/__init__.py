"""What a command would do, and why, with the store only read: `job.foresee` goes through the stages of a job."""
