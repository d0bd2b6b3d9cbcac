/* reshard/formats/megatron/torch_dist_cut.c - see reshard/formats/megatron/torch_dist_cut.h. */
#include "reshard/formats/megatron/torch_dist_cut.h"

#include <string.h>

#include "reshard/formats/pieces/flat_pieces.h"

bool torch_dist_cut_is(const struct dcp_item *item)
{
    return !item->is_object && item->cut_ndim > 0;
}

void torch_dist_cut_make(struct dcp_item *item)
{
    const int ndim = item->ndim;
    const struct box part = item->box;

    item->cut_ndim = ndim;
    memcpy(item->cut_shape, item->shape, sizeof item->cut_shape);
    for (int d = 0; d < ndim; d++) {
        item->shape[d] /= part.len[d];
        item->box.lo[d] /= part.len[d];
        item->box.len[d] = 1;
    }
    item->ndim = item->box.ndim = ndim + 1;
    item->box.lo[ndim] = 0;
    item->shape[ndim] = item->box.len[ndim] = box_elements(&part);
}

bool torch_dist_cut_part(struct dcp_item *part, const struct dcp_item *item)
{
    const int ndim = item->cut_ndim;
    int64_t left;

    if (item->ndim != ndim + 1)
        return false;
    left = item->shape[ndim];
    *part = *item;
    part->ndim = part->box.ndim = ndim;
    for (int d = 0; d < ndim; d++) {
        const int64_t parts = item->shape[d], whole = item->cut_shape[d];

        if (parts < 1 || whole < 1 || whole % parts != 0 || left % (whole / parts) != 0 ||
            item->box.len[d] != 1 || item->box.lo[d] >= parts)
            return false;
        left /= whole / parts;
        part->shape[d] = whole;
        part->box.len[d] = whole / parts;
        part->box.lo[d] = item->box.lo[d] * (whole / parts);
    }
    return left == 1 && item->box.len[ndim] <= item->shape[ndim] - item->box.lo[ndim];
}

bool torch_dist_cut_next(struct dcp_item *box, struct piece *piece, int64_t *at,
                         const struct dcp_item *item, const struct dcp_item *part,
                         const struct piece *stored)
{
    const int64_t first = item->box.lo[part->ndim], n = item->box.len[part->ndim];
    int64_t stride[BOX_NDIM_MAX];

    if (*at >= n)
        return false;
    flat_pieces_strides(stride, &part->box);
    *box = *part;
    box->box = flat_pieces_box(&part->box, stride, first + *at, first + n);
    *piece = *stored;
    piece->ndim = part->ndim;
    piece->box = box_whole(part->ndim, box->box.len);
    piece->begin += *at * dtype_bytes(stored->dtype);
    memcpy(piece->stride, stride, sizeof stride);
    *at += box_elements(&box->box);
    return true;
}
