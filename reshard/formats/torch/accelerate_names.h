/*
 * reshard/formats/torch/accelerate_names.h - names in a checkpoint of Hugging Face Accelerate with
 * FSDP (reshard/formats/torch/accelerate.h). Inside reshard/formats/torch/ only.
 */
#ifndef RESHARD_FORMATS_TORCH_ACCELERATE_NAMES_H
#define RESHARD_FORMATS_TORCH_ACCELERATE_NAMES_H

/* The two folders, and how the names in them begin. */
#define ACCELERATE_WEIGHTS        "pytorch_model_fsdp_0"
#define ACCELERATE_OPTIMIZER      "optimizer_0"
#define ACCELERATE_WEIGHTS_HEAD   "model"
#define ACCELERATE_OPTIMIZER_HEAD "optimizer"

#endif
