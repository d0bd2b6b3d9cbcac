/*
 * kernels/cpu/copy_table_body.h - an item of a table of copies, whether it converts its elements or
 * not, compiled as C and as CUDA.
 */
#ifndef KERNELS_CPU_COPY_TABLE_BODY_H
#define KERNELS_CPU_COPY_TABLE_BODY_H

#include "kernels/copy_body.h"
#include "kernels/cpu/cast_body.h"

/* Elements that are converted at once. */
#define CAST_PACK(type, n, bytes) \
    typedef struct {              \
        cast_##type x[n];         \
    } __attribute__((may_alias, aligned(bytes))) cast_##type##_##n

CAST_PACK(f64, 1, 8);
CAST_PACK(f64, 2, 16);
CAST_PACK(f32, 1, 4);
CAST_PACK(f32, 2, 8);
CAST_PACK(f32, 4, 16);
CAST_PACK(u16, 1, 2);
CAST_PACK(u16, 2, 4);
CAST_PACK(u16, 4, 8);
CAST_PACK(u16, 8, 16);

/* Packs lane, lane + lanes, ... of a run's elements, from `first` on; `first` becomes the first
 * element after the last whole pack. */
#define CAST_PACKS(to, from, to_is, from_is, width)                                           \
    do {                                                                                      \
        enum { most_ = COPY_TOGETHER(sizeof(cast_##from_is##_##width)) };                     \
        cast_##to_is##_##width *d_ = (cast_##to_is##_##width *)((cast_##to_is *)dst + first); \
        const cast_##from_is##_##width *s_ =                                                  \
            (const cast_##from_is##_##width *)((const cast_##from_is *)src + first);          \
        const int packs_ = (bytes / (int)sizeof(cast_##from_is) - first) / (width);           \
        int step_ = lanes;                                                                    \
        COPY_OPAQUE(step_);                                                                   \
        for (int i_ = lane; i_ < packs_; i_ += most_ * step_) {                               \
            cast_##from_is##_##width x_[most_];                                               \
            memset(x_, 0, sizeof x_);                                                         \
            COPY_EACH(k_, most_)                                                              \
            {                                                                                 \
                if (i_ + k_ * step_ < packs_)                                                 \
                    x_[k_] = s_[i_ + k_ * step_];                                             \
            }                                                                                 \
            COPY_EACH(k_, most_)                                                              \
            {                                                                                 \
                cast_##to_is##_##width y_;                                                    \
                COPY_EACH(j_, width)                                                          \
                {                                                                             \
                    cast_element(y_.x, (to), j_, x_[k_].x, (from), j_);                       \
                }                                                                             \
                if (i_ + k_ * step_ < packs_)                                                 \
                    d_[i_ + k_ * step_] = y_;                                                 \
            }                                                                                 \
        }                                                                                     \
        first += packs_ * (width);                                                            \
    } while (0)

#define CAST_PAIR(to, from, to_is, from_is, width)       \
    case (to)*DTYPE_COUNT + (from):                      \
        if (unit > 1)                                    \
            CAST_PACKS(to, from, to_is, from_is, width); \
        CAST_PACKS(to, from, to_is, from_is, 1);         \
        break

/* One run of so many bytes of elements, by lane number `lane` of `lanes`, in packs if `unit` is
 * more than 1. The pairs of types are constants in their loops. */
VEC_INLINE void cast_run(void *dst, enum dtype to, const void *src, enum dtype from, int bytes,
                         int unit, int lane, int lanes)
{
    int first = 0;

    switch ((int)to * DTYPE_COUNT + (int)from) {
        CAST_PAIR(DTYPE_F32, DTYPE_BF16, f32, u16, 4);
        CAST_PAIR(DTYPE_F32, DTYPE_F16, f32, u16, 4);
        CAST_PAIR(DTYPE_F32, DTYPE_F64, f32, f64, 2);
        CAST_PAIR(DTYPE_BF16, DTYPE_F32, u16, f32, 4);
        CAST_PAIR(DTYPE_BF16, DTYPE_F16, u16, u16, 8);
        CAST_PAIR(DTYPE_BF16, DTYPE_F64, u16, f64, 2);
        CAST_PAIR(DTYPE_F16, DTYPE_F32, u16, f32, 4);
        CAST_PAIR(DTYPE_F16, DTYPE_BF16, u16, u16, 8);
        CAST_PAIR(DTYPE_F16, DTYPE_F64, u16, f64, 2);
        CAST_PAIR(DTYPE_F64, DTYPE_F32, f64, f32, 2);
        CAST_PAIR(DTYPE_F64, DTYPE_BF16, f64, u16, 2);
        CAST_PAIR(DTYPE_F64, DTYPE_F16, f64, u16, 2);
    default:
        break;
    }
}

/* A thread does its part of an item: lane `lane` of the item's warp number `warp`. */
COPY_FN void copy_table_work(const struct copy_item *it, int64_t warp, int lane)
{
    const struct copy_part p = copy_item_part(it, warp, lane);

    if (it->dst_type == it->src_type)
        copy_run(p.dst, p.src, p.bytes, it->unit, p.lane, it->lanes);
    else
        cast_run(p.dst, it->dst_type, p.src, it->src_type, p.bytes, it->unit, p.lane, it->lanes);
}

#endif
