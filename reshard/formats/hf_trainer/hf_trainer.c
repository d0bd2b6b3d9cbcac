/* reshard/formats/hf_trainer/hf_trainer.c - see reshard/formats/hf_trainer/hf_trainer.h. */
#include "reshard/formats/hf_trainer/hf_trainer.h"

#include <limits.h>

#include "core/file.h"
#include "reshard/formats/hf_trainer/numbered_adamw.h"
#include "reshard/formats/safetensors/safetensors_pieces.h"
#include "reshard/formats/torch/torch_bin.h"
#include "storage/object.h"

#define OPTIMIZER "optimizer.pt"

bool hf_trainer_detect(const char *path)
{
    return object_is_in(path, OPTIMIZER);
}

static tp_status read_weights(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    const char *path = piece_source_path(s);

    if (safetensors_pieces_detect(path))
        return safetensors_pieces_read(s, m, err);
    if (torch_bin_detect(path))
        return torch_bin_read(s, m, err);
    if (object_is_in(path, "adapter_model.safetensors") || object_is_in(path, "adapter_model.bin"))
        return tp_fail(err, TP_E_NOTFOUND,
                       "%s: has an adapter of PEFT and its " OPTIMIZER
                       ", but not the model; merge the adapter into the model, and save that",
                       path);
    return tp_fail(err, TP_E_NOTFOUND,
                   "%s: has an " OPTIMIZER " of transformers' Trainer, but neither "
                   "model.safetensors nor pytorch_model.bin, nor their index",
                   path);
}

static tp_status read_optimizer(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    struct torch_pieces x = { .source = s };
    struct numbered_adamw optimizer = { .title = OPTIMIZER };
    char path[PATH_MAX];
    int file;
    tp_status st;

    TP_TRY(file_join(path, piece_source_path(s), OPTIMIZER, err));
    TP_TRY(file_table_add(piece_source_files(s), &file, path, err));
    TP_TRY(torch_pieces_open(&x, s, file, 0, -1, err));
    optimizer.root = x.root;
    st = numbered_adamw_read(&x, &optimizer, m, err);
done:
    torch_pieces_close(&x);
    return st;
}

/* Note what else Trainer has saved. The state of random numbers is that of one process, which of
 * several (rng_state_0.pth) is not all. */
static tp_status leave_others(struct piece_source *s, struct tp_err *err)
{
    static const struct {
        const char *name;
        bool extra;
    } files[] = { { "scheduler.pt", true },       { "scaler.pt", true },
                  { "rng_state.pth", true },      { "rng_state_0.pth", false },
                  { "trainer_state.json", true }, { "training_args.bin", true } };
    tp_status st = TP_OK;

    for (size_t i = 0; i < sizeof files / sizeof *files && !st; i++)
        if (object_is_in(piece_source_path(s), files[i].name))
            st = files[i].extra ? piece_source_leave_extra(s, files[i].name, NULL, 0, err)
                                : piece_source_leave(s, files[i].name, err);
    return st;
}

tp_status hf_trainer_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    tp_status st = read_weights(s, m, err);

    if (!st)
        st = read_optimizer(s, m, err);
    return st ? st : leave_others(s, err);
}
