/*
 * reshard/formats/megatron/megatron_rope.h - what Megatron-LM's --use-rope-scaling fixes: all but
 * the factor of Llama 3.1's rotary embedding (layout/rope_scaling.h).
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_ROPE_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_ROPE_H

#define MEGATRON_ROPE_FACTOR    8.0 /* the default of --rope-scaling-factor */
#define MEGATRON_ROPE_LOW_FREQ  1.0
#define MEGATRON_ROPE_HIGH_FREQ 4.0
#define MEGATRON_ROPE_POSITIONS 8192

#endif
