# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""The two ways of having PyTorch allocate pausable memory."""
