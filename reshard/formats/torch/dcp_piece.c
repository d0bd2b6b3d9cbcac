/* reshard/formats/torch/dcp_piece.c - see reshard/formats/torch/dcp_piece.h. */
#include "reshard/formats/torch/dcp_piece.h"

#include "reshard/formats/torch/torch_pieces.h"

tp_status dcp_piece_read(struct piece *out, struct piece_source *s, const struct dcp_item *item,
                         const char *group, struct tp_err *err)
{
    const struct box chunk = box_whole(item->ndim, item->box.len);
    struct torch_pieces x = { .source = s };
    tp_status st;

    TP_TRY(torch_pieces_open(&x, s, item->file_number, item->begin, item->size, err));
    TP_TRY(torch_pieces_tensor(out, &x, x.root, group, item->name, err));
    if (!box_equal(&out->box, &chunk) || out->dtype != item->dtype || out->dtype == DTYPE_COUNT)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: tensor %s has another shape or type than .metadata says",
                     file_table_path(piece_source_files(s), item->file_number), item->name);
done:
    torch_pieces_close(&x);
    return st;
}
