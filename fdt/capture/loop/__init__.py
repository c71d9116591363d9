"""Training by a loop of the script's own, around steps that are functions of TensorFlow."""
