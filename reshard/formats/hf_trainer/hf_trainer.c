/* reshard/formats/hf_trainer/hf_trainer.c - see reshard/formats/hf_trainer/hf_trainer.h. */
#include "reshard/formats/hf_trainer/hf_trainer.h"

#include "reshard/formats/hf_trainer/hf_trainer_files.h"
#include "reshard/formats/hf_trainer/numbered_adamw.h"
#include "reshard/formats/safetensors/safetensors_pieces.h"
#include "reshard/formats/torch/torch_bin.h"
#include "storage/object.h"

/* A folder of one of the two programs. */
struct hf_trainer_folder {
    struct piece_source *source;
    const char *path, *optimizer; /* the file of its optimizer */
    struct hf_trainer_program program;
};

/* ---- weights ---- */

static bool has_weights(const char *path)
{
    return safetensors_pieces_detect(path) || torch_bin_detect(path);
}

static tp_status read_weights(const struct hf_trainer_folder *f, const struct model *m,
                              struct tp_err *err)
{
    if (safetensors_pieces_detect(f->path))
        return safetensors_pieces_read(f->source, m, err);
    if (torch_bin_detect(f->path))
        return torch_bin_read(f->source, m, err);
    if (!object_is_in(f->path, f->optimizer))
        return tp_fail(err, TP_E_NOTFOUND,
                       "%s: has neither %s nor model.safetensors nor pytorch_model.bin; of FSDP it "
                       "is --format accelerate",
                       f->path, f->optimizer);
    return tp_fail(err, TP_E_NOTFOUND,
                   "%s: has an %s of %s, but neither model.safetensors nor pytorch_model.bin, nor "
                   "their index",
                   f->path, f->optimizer,
                   f->program.own_groups ? "Accelerate" : "transformers' Trainer");
}

/* ---- AdamW's state ---- */

static tp_status read_optimizer(const struct hf_trainer_folder *f, const struct model *m,
                                struct tp_err *err)
{
    struct torch_pieces x = { .source = f->source };
    struct numbered_adamw optimizer = { .title = f->optimizer, .program = f->program };
    int file;
    tp_status st;

    TP_TRY(piece_source_add_file(f->source, f->optimizer, &file, err));
    TP_TRY(torch_pieces_open(&x, f->source, file, 0, -1, err));
    optimizer.root = x.root;
    st = numbered_adamw_read(&x, &optimizer, m, err);
done:
    torch_pieces_close(&x);
    return st;
}

/* ---- the two programs ---- */

#define TRAINER_OPTIMIZER "optimizer.pt"

bool hf_trainer_detect(const char *path)
{
    return object_is_in(path, TRAINER_OPTIMIZER);
}

/* The state of random numbers is that of one process, which of several (rng_state_0.pth) is not
 * all. */
tp_status hf_trainer_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    static const struct hf_trainer_file files[] = {
        { .name = "scheduler.pt", .copied = true },
        { .name = "scaler.pt", .copied = true },
        { .name = "rng_state.pth", .copied = true },
        { .name = "rng_state_*.pth" },
        { .name = "trainer_state.json", .copied = true },
        { .name = "training_args.bin", .copied = true },
    };
    const struct hf_trainer_folder f = { .source = s,
                                         .path = piece_source_path(s),
                                         .optimizer = TRAINER_OPTIMIZER };
    tp_status st = read_weights(&f, m, err);

    if (!st)
        st = read_optimizer(&f, m, err);
    return st ? st : hf_trainer_files_leave(s, files, sizeof files / sizeof *files, err);
}

#define ACCELERATE_OPTIMIZER "optimizer.bin"
#define ACCELERATE_SCHEDULE  "scheduler.bin"

bool hf_trainer_accelerate_detect(const char *path)
{
    return object_is_in(path, ACCELERATE_OPTIMIZER) ||
           (object_is_in(path, ACCELERATE_SCHEDULE) && has_weights(path));
}

/* An optimizer that was not copied must not be lost in silence. */
static void refuse_missing(const struct hf_trainer_folder *f)
{
    struct tp_err why = { 0 };

    tp_fail(&why, TP_E_CORRUPT,
            "%s: has " ACCELERATE_SCHEDULE " and no " ACCELERATE_OPTIMIZER
            ", which Accelerate saves together; copy it too",
            f->path);
    piece_source_refuse_state(f->source, &why);
}

tp_status hf_trainer_accelerate_read(struct piece_source *s, const struct model *m,
                                     struct tp_err *err)
{
    static const struct hf_trainer_file files[] = {
        { .name = ACCELERATE_SCHEDULE, .copied = true },
        { .name = "scaler.pt", .copied = true },
        { .name = "random_states_*.pkl", .copied = true },
        { .name = "sampler.bin", .copied = true },
        { .name = "sampler_1.bin", .copied = true },
        { .name = "dl_state_dict.bin", .copied = true },
        { .name = "dl_state_dict_1.bin", .copied = true },
        { .name = "custom_checkpoint_*.pkl" },
        { .name = "scheduler_1.bin" },
        { .name = "optimizer_1.bin" },
        { .name = "model_1.safetensors" },
        { .name = "pytorch_model_1.bin" },
    };
    const char *path = piece_source_path(s);
    const struct hf_trainer_folder f = {
        .source = s,
        .path = path,
        .optimizer = ACCELERATE_OPTIMIZER,
        .program = { .own_groups = true, .other_version = !object_is_in(path, "config.json") }
    };
    tp_status st = read_weights(&f, m, err);

    if (st)
        return st;
    if (object_is_in(path, ACCELERATE_OPTIMIZER))
        st = read_optimizer(&f, m, err);
    else
        refuse_missing(&f);
    return st ? st : hf_trainer_files_leave(s, files, sizeof files / sizeof *files, err);
}
