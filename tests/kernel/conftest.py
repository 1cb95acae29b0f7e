"""One thread for torch: the tensors here are small, and threads that wait for one another cost more than they bring."""

import torch

torch.set_num_threads(1)
