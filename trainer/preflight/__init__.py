"""The look at everything before long work starts: inputs, devices, model, batches, memory, disk."""
