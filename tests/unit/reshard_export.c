/*
 * tests/unit/reshard_export.c - export writes what transformers reads, import reads it back, and
 * both appear complete or not at all.
 *
 * covers: reshard/import reshard/atomic_folder reshard/formats/hf_config reshard/formats/hf_assets
 *     reshard/formats/model_folder
 */
#include "reshard/export.h"

#include <glob.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/root.h"
#include "reshard/atomic_folder.h"
#include "reshard/formats/hf_assets.h"
#include "reshard/formats/hf_config.h"
#include "reshard/import.h"
#include "tests/unit/temp_dir.h"
#include "tests/unit/tiny_ckpt.h"

enum { STEP = 3, SEED = 5 };

static const int64_t MEMORY = INT64_C(1) << 31;

TestSuite(export, .init = temp_dir_make, .fini = temp_dir_remove);

static struct export_request export_of(const char *from, const char *out)
{
    return (struct export_request){ .ckpt = from,
                                    .step = -1,
                                    .format = "safetensors",
                                    .out = out,
                                    .memory_bytes = MEMORY,
                                    .threads = 2 };
}

static struct import_request import_of(const char *from, const char *layout, const char *out)
{
    return (struct import_request){ .source = from,
                                    .format = "auto",
                                    .layout = layout,
                                    .out = out,
                                    .memory_bytes = MEMORY,
                                    .threads = 2 };
}

static char *read_text(const char *path, size_t *size, struct arena *arena)
{
    struct tp_err err = { 0 };
    char *text;

    cr_assert_eq(file_read_all(&text, size, path, 1 << 24, arena, &err), TP_OK, "%s", err.msg);
    return text;
}

static bool same_file(const char *a, const char *b)
{
    struct arena arena = { 0 };
    size_t a_size, b_size;
    const char *a_text = read_text(a, &a_size, &arena), *b_text = read_text(b, &b_size, &arena);
    bool same = a_size == b_size && memcmp(a_text, b_text, a_size) == 0;

    arena_free(&arena);
    return same;
}

Test(export, what_is_exported_is_imported_and_exported_again_with_the_same_bytes)
{
    struct export_request first = export_of(temp_path("a"), temp_path("hf"));
    struct import_request back = import_of(first.out, "tp4pp2", temp_path("b"));
    struct export_request again = export_of(back.out, "");
    char out[PATH_MAX];
    struct export_report exported;
    struct import_report imported;
    struct tp_err err = { 0 };

    tiny_ckpt(first.ckpt, "tp2dp2zero3", STEP, SEED, DTYPE_BF16);
    cr_assert_eq(export_run(&exported, &first, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(exported.totals.n_tensors, 2 * 9 + 3);
    cr_expect_eq(exported.totals.digests_equal, exported.totals.n_tensors);
    cr_expect(exported.dtype == DTYPE_BF16 && exported.totals.step == STEP && exported.files == 1);
    cr_assert_eq(import_run(&imported, &back, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(imported.totals.n_tensors, exported.totals.n_tensors);
    cr_expect_eq(imported.totals.digests_equal, imported.totals.n_tensors);
    cr_expect_eq(imported.totals.bytes_written, exported.totals.bytes_written);
    snprintf(out, sizeof out, "%s", temp_path("hf2"));
    again.out = out;
    cr_assert_eq(export_run(&exported, &again, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(exported.totals.step, 0);
    cr_expect(same_file(temp_path("hf/model.safetensors"), temp_path("hf2/model.safetensors")));
    cr_expect(same_file(temp_path("hf/config.json"), temp_path("hf2/config.json")));
}

/* In the fixture masters and weights differ, so the bytes show which of them was written. */
Test(export, f32_weights_are_the_masters)
{
    const enum dtype f32 = DTYPE_F32;
    struct export_request q = export_of(temp_path("a"), temp_path("hf"));
    struct tensor norm = { .name = "model.norm.weight", .group = GROUP_MASTER, .dtype = DTYPE_F32 };
    const struct box whole = { .ndim = 1, .len = { 64 } };
    struct export_report r;
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    unsigned char master[64 * 4];
    const char *file;
    size_t size;

    norm.ndim = 1;
    norm.shape[0] = 64;
    fixture_fill(master, &norm, &whole, SEED);
    tiny_ckpt(q.ckpt, "tp2", STEP, SEED, DTYPE_BF16);
    q.dtype = &f32;
    cr_assert_eq(export_run(&r, &q, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(r.totals.digests_equal, r.totals.n_tensors, "masters are copied, not cast");
    file = read_text(temp_path("hf/model.safetensors"), &size, &arena);
    cr_expect_not_null(memmem(file, size, master, sizeof master));
    arena_free(&arena);
}

Test(export, an_export_is_replaced_by_force_and_other_folders_never)
{
    struct export_request q = export_of(temp_path("a"), temp_path("hf"));
    struct export_report r;
    struct tp_err err = { 0 };

    tiny_ckpt(q.ckpt, "tp1", STEP, SEED, DTYPE_F32);
    cr_assert_eq(export_run(&r, &q, &err), TP_OK, "%s", err.msg);
    temp_write("hf/old", "x", 1);
    cr_expect_eq(export_run(&r, &q, &err), TP_E_EXISTS);
    cr_expect(file_exists(temp_path("hf/old")));
    q.force = true;
    cr_expect_eq(export_run(&r, &q, &err), TP_OK, "%s", err.msg);
    cr_expect_not(file_exists(temp_path("hf/old")));
    cr_expect(file_exists(temp_path("hf/model.safetensors")));
    cr_assert_eq(unlink(temp_path("hf/config.json")), 0); /* now it is no longer an export */
    cr_expect_eq(export_run(&r, &q, &err), TP_E_EXISTS);
    cr_expect(strstr(err.msg, "config.json"), "%s", err.msg);
    cr_expect(file_exists(temp_path("hf/model.safetensors")));
}

Test(export, failures_leave_nothing)
{
    struct export_request q = export_of(temp_path("a"), temp_path("hf"));
    struct import_request back = import_of(temp_path("model"), "tp2", temp_path("b"));
    struct export_report exported;
    struct import_report imported;
    struct tp_err err = { 0 };

    tiny_ckpt(q.ckpt, "tp1", STEP, SEED, DTYPE_F32);
    q.assets = temp_path("no-assets");
    cr_expect_eq(export_run(&exported, &q, &err), TP_E_NOTFOUND);
    cr_expect_not(file_exists(q.out));
    q.assets = NULL;
    q.format = "onnx";
    cr_expect_eq(export_run(&exported, &q, &err), TP_E_USAGE);
    cr_expect_not(file_exists(q.out));

    cr_assert_eq(mkdir(back.source, 0777), 0);
    temp_write("model/config.json", tiny_config, strlen(tiny_config));
    cr_expect_eq(import_run(&imported, &back, &err), TP_E_NOTFOUND, "%s", err.msg);
    temp_write("model/model.safetensors", "\2\0\0\0\0\0\0\0{}", 10);
    cr_expect_eq(import_run(&imported, &back, &err), TP_E_CORRUPT);
    cr_expect(strstr(err.msg, "is missing"), "%s", err.msg);
    cr_expect_not(file_exists(back.out));
}

/* ---- the folder ---- */

Test(export, an_atomic_folder_appears_at_its_commit)
{
    struct atomic_folder f = { .force = false };
    struct tp_err err = { 0 };
    char dir[PATH_MAX], path[PATH_MAX], tmp[PATH_MAX];

    snprintf(dir, sizeof dir, "%s", temp_path("x/y/out"));
    cr_assert_eq(atomic_folder_begin(&f, dir, false, NULL, NULL, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(file_join(path, f.tmp, "mark", &err), TP_OK);
    cr_assert_eq(file_write_new(path, "x", 1, &err), TP_OK, "%s", err.msg);
    cr_expect_not(file_exists(dir));
    snprintf(tmp, sizeof tmp, "%s", f.tmp);
    cr_assert_eq(atomic_folder_commit(&f, &err), TP_OK, "%s", err.msg);
    cr_expect(file_exists(temp_path("x/y/out/mark")));
    cr_expect_not(file_exists(tmp));
    atomic_folder_abort(&f); /* after a commit it does nothing */
    cr_expect(file_exists(temp_path("x/y/out/mark")));

    cr_assert_eq(atomic_folder_begin(&f, temp_path("z"), false, NULL, NULL, &err), TP_OK);
    snprintf(tmp, sizeof tmp, "%s", f.tmp);
    atomic_folder_abort(&f);
    cr_expect_not(file_exists(tmp));
    cr_expect_not(file_exists(temp_path("z")));
}

Test(export, an_atomic_folder_does_not_replace_one_that_appeared_meanwhile)
{
    struct atomic_folder f = { .force = false };
    struct tp_err err = { 0 };

    cr_assert_eq(atomic_folder_begin(&f, temp_path("out"), false, NULL, NULL, &err), TP_OK);
    cr_assert_eq(mkdir(temp_path("out"), 0777), 0);
    temp_write("out/theirs", "x", 1);
    cr_expect_eq(atomic_folder_commit(&f, &err), TP_E_EXISTS);
    atomic_folder_abort(&f);
    cr_expect(file_exists(temp_path("out/theirs")));
}

Test(export, an_atomic_folder_appears_where_a_link_leads)
{
    struct atomic_folder f;
    struct tp_err err = { 0 };
    char path[PATH_MAX], link[PATH_MAX];

    cr_assert(mkdir(temp_path("disk"), 0777) == 0 && mkdir(temp_path("disk/out"), 0777) == 0);
    snprintf(link, sizeof link, "%s", temp_path("out"));
    cr_assert_eq(symlink("disk/out", link), 0);
    for (int i = 0; i < 2; i++) { /* an empty folder, then one that is replaced */
        cr_assert_eq(atomic_folder_begin(&f, link, i, NULL, NULL, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(file_join(path, f.tmp, i ? "second" : "first", &err), TP_OK);
        cr_assert_eq(file_write_new(path, "x", 1, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(atomic_folder_commit(&f, &err), TP_OK, "%s", err.msg);
        cr_expect_eq(readlink(link, path, sizeof path), (ssize_t)strlen("disk/out"));
        cr_expect(file_exists(temp_path(i ? "disk/out/second" : "disk/out/first")));
    }
    cr_expect_not(file_exists(temp_path("disk/out/first")));
}

Test(export, an_atomic_folder_that_could_not_get_its_name_is_refused_at_once)
{
    static const char *const dirs[] = { "/proc", ".", "..", "./.", "./" };
    struct atomic_folder f;
    struct tp_err err = { 0 };

    cr_assert_eq(chdir(temp_dir), 0);
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
        cr_expect_eq(atomic_folder_begin(&f, dirs[i], true, NULL, NULL, &err), TP_E_USAGE, "%s",
                     dirs[i]);
}

Test(export, what_a_dead_writer_left_is_removed_and_a_live_one_is_not)
{
    struct atomic_folder live, f;
    struct tp_err err = { 0 };
    char dead[PATH_MAX] = "", pattern[PATH_MAX];
    glob_t found;
    pid_t pid;
    int status;

    cr_assert_eq(atomic_folder_begin(&live, temp_path("out"), false, NULL, NULL, &err), TP_OK);
    cr_assert_eq(mkdir(temp_path("out.tmp-backup"), 0777), 0);
    cr_assert_eq(mkdir(temp_path("out2.tmp-00112233445566778899aabbccddeeff"), 0777), 0);
    pid = fork();
    if (pid == 0) {
        static struct atomic_folder mine;

        _exit(atomic_folder_begin(&mine, temp_path("out/"), false, NULL, NULL, &err) != TP_OK);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    snprintf(pattern, sizeof pattern, "%s.tmp-*", temp_path("out"));
    cr_assert_eq(glob(pattern, 0, NULL, &found), 0);
    cr_assert_eq(found.gl_pathc, 3, "that of the live writer, of the dead one, and the backup");
    for (size_t i = 0; i < found.gl_pathc; i++)
        if (strcmp(found.gl_pathv[i], live.tmp) != 0 && !strstr(found.gl_pathv[i], "backup"))
            snprintf(dead, sizeof dead, "%s", found.gl_pathv[i]);
    globfree(&found);

    cr_assert_eq(atomic_folder_begin(&f, temp_path("out"), false, NULL, NULL, &err), TP_OK);
    cr_expect_not(file_exists(dead), "%s", dead);
    cr_expect(file_exists(live.tmp));
    cr_expect(file_exists(temp_path("out.tmp-backup")));
    cr_expect(file_exists(temp_path("out2.tmp-00112233445566778899aabbccddeeff")));
    atomic_folder_abort(&f);
    atomic_folder_abort(&live);
}

static bool wants_all(void *ctx, const char *path)
{
    snprintf(ctx, PATH_MAX, "%s", path);
    return true;
}

Test(export, what_a_dead_writer_left_is_taken_over_by_an_heir_that_wants_it)
{
    struct atomic_folder first, f;
    struct tp_err err = { 0 };
    char dir[PATH_MAX], path[PATH_MAX], seen[PATH_MAX] = "";
    const struct atomic_folder_heir heir = { wants_all, seen };

    snprintf(dir, sizeof dir, "%s", temp_path("out"));
    cr_assert_eq(atomic_folder_begin(&first, dir, false, NULL, &heir, &err), TP_OK, "%s", err.msg);
    cr_expect_not(first.resumed, "there was nothing");
    cr_assert_eq(atomic_folder_begin(&f, dir, false, NULL, NULL, &err), TP_OK, "%s", err.msg);
    cr_expect(file_exists(first.tmp), "its writer is alive");
    atomic_folder_abort(&f);
    cr_assert_eq(file_join(path, first.tmp, "progress", &err), TP_OK);
    cr_assert_eq(file_write_new(path, "x", 1, &err), TP_OK, "%s", err.msg);
    atomic_folder_suspend(&first);

    cr_assert_eq(atomic_folder_begin(&f, dir, false, NULL, &heir, &err), TP_OK, "%s", err.msg);
    cr_expect(f.resumed);
    cr_expect_str_eq(f.tmp, seen);
    cr_expect(file_exists(path));
    f.scratch = "progress";
    cr_assert_eq(atomic_folder_commit(&f, &err), TP_OK, "%s", err.msg);
    cr_expect(file_is_dir(dir));
    cr_expect_not(file_exists(temp_path("out/progress")), "the scratch file is removed");
}

/* ---- the other files ---- */

Test(export, config_json_has_the_members_of_both_transformers_versions)
{
    struct arena arena = { 0 };
    struct model m;
    struct tp_err err = { 0 };
    char *text = NULL;
    json_t *root;

    cr_assert_eq(model_config_parse(&m, tiny_config, strlen(tiny_config), "x", &arena, &err),
                 TP_OK);
    cr_assert_eq(hf_config_make(&text, &m, DTYPE_BF16, &err), TP_OK, "%s", err.msg);
    root = json_loads(text, 0, NULL);
    cr_expect_str_eq(json_string_value(json_object_get(root, "torch_dtype")), "bfloat16");
    cr_expect_str_eq(json_string_value(json_object_get(root, "dtype")), "bfloat16");
    cr_expect_eq(json_real_value(json_object_get(root, "rope_theta")), 10000.0);
    cr_expect_eq(
        json_real_value(json_object_get(json_object_get(root, "rope_parameters"), "rope_theta")),
        10000.0);
    cr_expect_eq(json_integer_value(json_object_get(root, "vocab_size")), 250);
    cr_expect_null(strstr(text, "0000000001"), "1e-05 became a long number: %s", text);
    json_decref(root);
    free(text);
    arena_free(&arena);
}

Test(export, assets_are_copied_byte_by_byte_and_other_files_are_not)
{
    struct tp_err err = { 0 };
    char from[PATH_MAX], to[PATH_MAX];

    snprintf(from, sizeof from, "%s", temp_path("from"));
    snprintf(to, sizeof to, "%s", temp_path("to"));
    cr_assert(mkdir(from, 0777) == 0 && mkdir(to, 0777) == 0);
    cr_expect_eq(hf_assets_check(from, &err), TP_E_NOTFOUND);
    temp_write("from/tokenizer.json", "a\0b", 3);
    temp_write("from/pytorch_model.bin", "x", 1);
    cr_expect_eq(hf_assets_check(from, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(hf_assets_copy(from, to, &err), TP_OK, "%s", err.msg);
    cr_expect(same_file(temp_path("from/tokenizer.json"), temp_path("to/tokenizer.json")));
    cr_expect_not(file_exists(temp_path("to/pytorch_model.bin")));
}
