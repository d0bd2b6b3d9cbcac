/* reshard/formats/checkpoint/shared_upload.c - see reshard/formats/checkpoint/shared_upload.h. */
#include "reshard/formats/checkpoint/shared_upload.h"

#include <stdio.h>
#include <stdlib.h>

#include "reshard/engine/reduce_sums.h"
#include "storage/upload.h"

enum { PIECE_GROUP = 16 }; /* words, so that a slice of reduce_sums is 512 KiB */

static void or_words(uint64_t *into, const uint64_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        into[i] |= from[i];
}

tp_status shared_upload_id(struct comm_control *c, char *id, const struct upload_file *u,
                           struct tp_err *err)
{
    if (control_rank(c) == 0)
        snprintf(id, UPLOAD_ID_MAX, "%s", upload_file_id(u));
    return control_broadcast(c, id, UPLOAD_ID_MAX, 0, err);
}

/* Combine the pieces of a part that no process has sent. Parts with bytes of /index wait on rank 0,
 * so the others send the rest in turn; `turn` counts these parts. */
static tp_status combine_part(struct comm_control *c, struct upload_file *u, int part, int *turn,
                              struct tp_err *err)
{
    const bool is_root = control_rank(c) == 0;
    const int others = control_size(c) - 1;
    const int sender = upload_file_is_held(u, part) || others == 0 ? 0 : 1 + (*turn)++ % others;
    struct reduce_sums pieces = { .group = PIECE_GROUP, .add = or_words };
    tp_status st = is_root ? upload_file_add_piece(u, part, err) : TP_OK;

    TP_TRY(control_agree(c, st, err));
    pieces.words = upload_file_piece(u, part, &pieces.n);
    TP_TRY(reduce_sums(c, &pieces, err));
    if (sender != 0) {
        TP_TRY(control_agree(c, upload_file_add_piece(u, part, err), err));
        TP_TRY(control_broadcast(c, upload_file_piece(u, part, &pieces.n),
                                 pieces.n * (int64_t)sizeof *pieces.words, 0, err));
    }
    if (control_rank(c) == sender)
        st = upload_file_send_piece(u, part, err);
    else
        upload_file_drop_piece(u, part);
    st = control_agree(c, st, err);
done:
    return st;
}

tp_status shared_upload_combine(struct comm_control *c, struct upload_file *u, struct tp_err *err)
{
    const int n_parts = upload_file_parts(u);
    int64_t *sent = calloc((size_t)n_parts, sizeof *sent);
    int turn = 0;
    tp_status st =
        sent ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for a list of %d parts", n_parts);

    st = control_agree(c, st, err);
    if (st || !sent)
        goto done;
    for (int part = 0; part < n_parts; part++)
        sent[part] = upload_file_is_sent(u, part);
    TP_TRY(control_max_i64(c, sent, n_parts, err));
    for (int part = 0; part < n_parts; part++)
        if (!sent[part])
            TP_TRY(combine_part(c, u, part, &turn, err));
    upload_file_share(u);
done:
    free(sent);
    return st;
}

tp_status shared_upload_settle(struct comm_control *c, struct upload_file *u, struct tp_err *err)
{
    struct reduce_sums receipts = { .group = UPLOAD_RECEIPT_WORDS, .add = or_words };
    tp_status st;

    TP_TRY(control_agree(c, upload_file_wait(u, err), err));
    receipts.words = upload_file_receipts(u, &receipts.n);
    st = reduce_sums(c, &receipts, err);
done:
    return st;
}
