/* reshard/formats/torch/accelerate.c - see reshard/formats/torch/accelerate.h. */
#include "reshard/formats/torch/accelerate.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/progress.h"
#include "reshard/formats/torch/accelerate_names.h"
#include "reshard/formats/torch/dcp.h"
#include "reshard/formats/torch/dcp_extras.h"
#include "reshard/formats/torch/named_adamw.h"
#include "reshard/formats/torch/torch_bin.h"
#include "reshard/formats/torch/torch_target.h"
#include "storage/object.h"

#define METADATA         ".metadata"
#define FIRST_FILE       "__0_0.distcp"
#define WHOLE_WEIGHTS    "pytorch_model_fsdp.bin"
#define WHOLE_OPTIMIZER  "optimizer.bin"
#define TRAINER_STATE    "trainer_state.json"
#define TRAINER_SCHEDULE "scheduler.pt"
#define SCHEDULE         "scheduler.bin"

enum { SMALL_FILE_BYTES_MAX = 256 << 20, STATE_TEXT = 512 };

bool accelerate_detect(const char *path)
{
    return object_is_in(path, ACCELERATE_WEIGHTS "/" METADATA) ||
           object_is_in(path, ACCELERATE_OPTIMIZER "/" METADATA) ||
           object_is_in(path, WHOLE_WEIGHTS);
}

/* ---- what is beside the tensors ---- */

/* They mean the same at every layout. */
static const char *const kept[] = { TRAINER_STATE, TRAINER_SCHEDULE, SCHEDULE, "scaler.pt" };

/* They belong to ranks or to a program; the first of several is enough to say so. */
static const struct {
    const char *name, *all;
} left[] = {
    { "rng_state.pth", "rng_state.pth" },
    { "rng_state_0.pth", "rng_state_*.pth" },
    { "random_states_0.pkl", "random_states_*.pkl" },
    { "sampler.bin", "sampler*.bin" },
    { "dl_state_dict.bin", "dl_state_dict*.bin" },
    { "custom_checkpoint_0.pkl", "custom_checkpoint_*.pkl" },
    { "training_args.bin", "training_args.bin" },
    { "pytorch_model_fsdp_1/" METADATA, "pytorch_model_fsdp_1" },
    { "optimizer_1/" METADATA, "optimizer_1" },
};

/* Note the small files. Those that are kept are in the table of files, so that a change of them is
 * noticed when an interrupted run continues. */
static tp_status note_files(struct piece_source *s, struct tp_err *err)
{
    const char *dir = piece_source_path(s);
    tp_status st = TP_OK;
    int file;

    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        if (!object_is_in(dir, kept[i]))
            continue;
        TP_TRY(piece_source_add_file(s, kept[i], &file, err));
        TP_TRY(dcp_extras_leave_file(s, kept[i], err));
    }
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        if (object_is_in(dir, left[i].name))
            TP_TRY(piece_source_leave(s, left[i].all, err));
done:
    return st;
}

/* ---- reading ---- */

/* The folder of this name, if it has a .metadata. NULL: it does not. TP_E_CORRUPT: it has other
 * files. */
static tp_status find_folder(const char **dir, struct piece_source *s, const char *name,
                             struct tp_err *err)
{
    const char *path = arena_printf(piece_source_arena(s), "%s/%s", piece_source_path(s), name);

    *dir = NULL;
    if (!path)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its path", piece_source_path(s));
    if (object_is_in(path, METADATA))
        *dir = path;
    else if (object_is_in(path, FIRST_FILE))
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: has no .metadata, which rank 0 writes last; it was not copied, or the "
                       "save was interrupted",
                       path);
    return TP_OK;
}

static tp_status read_whole_optimizer(struct piece_source *s, const struct model *m,
                                      struct tp_err *err)
{
    struct torch_pieces x = { .source = s };
    struct named_adamw optimizer = { .title = "optimizer", .prefix = "" };
    int file;
    tp_status st;

    TP_TRY(piece_source_add_file(s, WHOLE_OPTIMIZER, &file, err));
    TP_TRY(torch_pieces_open(&x, s, file, 0, -1, err));
    optimizer.root = x.root;
    st = named_adamw_read(&x, &optimizer, m, err);
done:
    torch_pieces_close(&x);
    return st;
}

/* FULL_STATE_DICT. */
static tp_status read_whole(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    int file;
    tp_status st;

    if (!object_is_in(piece_source_path(s), WHOLE_WEIGHTS))
        return tp_fail(err, TP_E_NOTFOUND,
                       "%s: has neither " ACCELERATE_WEIGHTS " nor " WHOLE_WEIGHTS
                       ", which Accelerate saves with FSDP; of one process or DDP it is --format "
                       "accelerate-ddp",
                       piece_source_path(s));
    TP_TRY(piece_source_add_file(s, WHOLE_WEIGHTS, &file, err));
    TP_TRY(torch_bin_read_file(s, m, file, err));
    if (object_is_in(piece_source_path(s), WHOLE_OPTIMIZER))
        TP_TRY(read_whole_optimizer(s, m, err));
    st = note_files(s, err);
done:
    return st;
}

tp_status accelerate_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    const char *dirs[2];
    tp_status st;

    TP_TRY(find_folder(&dirs[0], s, ACCELERATE_WEIGHTS, err));
    TP_TRY(find_folder(&dirs[1], s, ACCELERATE_OPTIMIZER, err));
    if (!dirs[0] && !dirs[1])
        return read_whole(s, m, err);
    if (!dirs[0]) {
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: has an optimizer (" ACCELERATE_OPTIMIZER ") and no weights; copy "
                     "its folder " ACCELERATE_WEIGHTS " too",
                     piece_source_path(s));
        goto done;
    }
    TP_TRY(dcp_read_folders(s, m, dirs, dirs[1] ? 2 : 1, ACCELERATE_WEIGHTS_HEAD ".", err));
    st = note_files(s, err);
done:
    return st;
}

tp_status accelerate_check(struct piece_source *s, struct tp_err *err)
{
    const char *path = piece_source_path(s);

    for (int i = 0; i < piece_source_count(s); i++) {
        const struct piece *p = piece_source_tensor(s, i).pieces;

        if (strcmp(p->group, GROUP_EXP_AVG) == 0 && !p->name[strspn(p->name, "0123456789")])
            return tp_fail(
                err, TP_E_USAGE,
                "%s: the optimizer has numbers in place of "
                "the names of parameters (%s), as Accelerate 1.6 saved it with FSDP2, so it "
                "is not known whose state it is; take the weights alone by --no-optim",
                path, p->name);
    }
    if (!piece_source_has(s, GROUP_EXP_AVG) &&
        (object_is_in(path, TRAINER_SCHEDULE) || object_is_in(path, SCHEDULE)) &&
        !object_is_in(path, ACCELERATE_OPTIMIZER "/" METADATA) &&
        !object_is_in(path, WHOLE_OPTIMIZER))
        return tp_fail(
            err, TP_E_CORRUPT,
            "%s: has %s and no optimizer, which are saved together; copy " ACCELERATE_OPTIMIZER
            " (or " WHOLE_OPTIMIZER ") too, or take the weights alone by --no-optim",
            path, object_is_in(path, SCHEDULE) ? SCHEDULE : TRAINER_SCHEDULE);
    return TP_OK;
}

/* ---- writing ---- */

/* What depends on the program is null or as the Trainer has it, and people fill it in. */
static const char state_format[] = "{\n"
                                   "  \"epoch\": 0.0,\n"
                                   "  \"eval_steps\": 500,\n"
                                   "  \"global_step\": %lld,\n"
                                   "  \"logging_steps\": 500,\n"
                                   "  \"save_steps\": 500,\n"
                                   "  \"stateful_callbacks\": {\n"
                                   "    \"TrainerControl\": { \"args\": {}, \"attributes\": {} }\n"
                                   "  },\n"
                                   "  \"train_batch_size\": null\n"
                                   "}\n";

static tp_status write_state(const struct export_contents *q, struct tp_err *err)
{
    char path[PATH_MAX], text[STATE_TEXT];
    tp_status st = file_join(path, q->dir, TRAINER_STATE, err);
    const int n = snprintf(text, sizeof text, state_format, (long long)q->step);

    if (st)
        return st;
    progress_note(q->progress,
                  "before the Trainer resumes from it, set train_batch_size (of a device), "
                  "save_steps, logging_steps and eval_steps in its " TRAINER_STATE
                  " to those of your program");
    return file_write_new(path, text, (size_t)n, err);
}

/* A LambdaLR, which the Trainer's schedules are, computes everything else from its step. */
static tp_status write_schedule(struct piece_target *pieces, int64_t step, struct tp_err *err)
{
    struct torch_target x;
    struct pickle_writer *w = &x.save.pickle;
    tp_status st;
    int file;

    TP_TRY(piece_target_file(pieces, &file, TRAINER_SCHEDULE, err));
    torch_target_begin(&x, pieces, file, 0);
    pickle_write_dict(w);
    pickle_write_key_int(w, "last_epoch", step);
    pickle_write_key_int(w, "_step_count", step + 1);
    pickle_write_text(w, "lr_lambdas");
    pickle_write_op(w, PICKLE_OP_EMPTY_LIST);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    st = torch_target_finish(&x, TP_OK, err);
done:
    return st;
}

tp_status accelerate_write_files(struct piece_target *pieces, const struct export_contents *q,
                                 struct tp_err *err)
{
    bool moments = false;
    tp_status st = TP_OK;

    for (int i = 0; q->extras && i < piece_source_left(q->extras); i++)
        if (dcp_extras_is_file(q->extras, i))
            TP_TRY(object_copy_file(piece_source_path(q->extras), q->dir,
                                    piece_source_left_name(q->extras, i), SMALL_FILE_BYTES_MAX,
                                    err));
    for (int i = 0; i < q->n; i++)
        moments |= strcmp(q->tensors[i].group, GROUP_EXP_AVG) == 0;
    if (moments && !q->extras) {
        TP_TRY(write_state(q, err));
        st = write_schedule(pieces, q->step, err);
    }
done:
    return st;
}
