"""Training by sessions of TensorFlow 1."""
