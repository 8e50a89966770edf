"""Trained networks as files for other programs: ONNX and torch.export, each checked against the network it came from.

`onnx_model.py` and `torch_program.py` write them, `graph.py` is what they hold. `runtime.py` runs an ONNX file on
onnxruntime; it and everything it imports work without torch.
"""
