/* reshard/formats/pieces/flat_pieces.c - see reshard/formats/pieces/flat_pieces.h. */
#include "reshard/formats/pieces/flat_pieces.h"

#include "reshard/formats/pieces/module_piece.h"

/* Single indices on the axes before one axis, a range on that axis, all of the later ones. */
struct box flat_pieces_box(const struct box *whole, const int64_t *stride, int64_t at, int64_t end)
{
    struct box b = { .ndim = whole->ndim };
    int64_t left = at;
    int axis = 0;

    while (axis < whole->ndim - 1 && (at % stride[axis] != 0 || stride[axis] > end - at))
        axis++;
    for (int d = 0; d < whole->ndim; d++) {
        int64_t index = left / stride[d], room = whole->len[d] - index,
                rows = (end - at) / stride[d];

        left %= stride[d];
        b.lo[d] = whole->lo[d] + index;
        b.len[d] = d < axis ? 1 : d > axis ? whole->len[d] : rows < room ? rows : room;
    }
    return b;
}

int64_t flat_pieces_strides(int64_t *stride, const struct box *whole)
{
    int64_t elements = 1;

    for (int d = whole->ndim - 1; d >= 0; d--) {
        stride[d] = elements;
        elements *= whole->len[d];
    }
    return elements;
}

tp_status flat_pieces_add(struct piece_source *s, const struct model *m, const struct piece *p,
                          int64_t first, int64_t n, struct tp_err *err)
{
    struct piece part = *p;
    tp_status st = TP_OK;

    if (flat_pieces_strides(part.stride, &p->box) ==
        0) /* a tensor without elements, which is one piece */
        return module_piece_add(s, m, &part, err);
    for (int64_t at = first; at < first + n && !st;) {
        part.box = flat_pieces_box(&p->box, part.stride, at, first + n);
        part.begin =
            p->begin + (at - first) * (p->dtype == DTYPE_COUNT ? 0 : dtype_bytes(p->dtype));
        st = module_piece_add(s, m, &part, err);
        at += box_elements(&part.box);
    }
    return st;
}

bool flat_pieces_is_dense(const struct piece *p)
{
    int64_t elements = 1;

    for (int d = p->ndim - 1; d >= 0; d--) {
        if (p->box.len[d] > 1 && p->stride[d] != elements)
            return false;
        elements *= p->box.len[d];
    }
    return true;
}
