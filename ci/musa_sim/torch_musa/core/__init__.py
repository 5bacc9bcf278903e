"""The parts of the device module, under the names that users of torch_musa import."""
