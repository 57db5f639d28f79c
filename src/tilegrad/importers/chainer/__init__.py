"""Graph dumps of Chainer: tensors by bytes, functions with what they retain. Shapes are inferred."""
