/* cli/ckpt/foreign.c - see cli/ckpt/foreign.h. */
#include "cli/ckpt/foreign.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/print.h"
#include "cli/report.h"
#include "core/size.h"
#include "layout/box.h"
#include "reshard/foreign_contents.h"
#include "reshard/foreign_shapes.h"

enum { SHAPE_TEXT = 160 };

tp_status foreign_open_noted(struct foreign_contents *c, const struct foreign_contents_request *q,
                             struct tp_err *err)
{
    tp_status st = foreign_contents_open(c, q, err);

    if (!st && c->note)
        report_note("tp-ckpt", "%s", c->note);
    if (!st && c->refused)
        report_note("tp-ckpt", "left out here: %s", c->refused->msg);
    if (!st && c->n_unread)
        report_note(
            "tp-ckpt",
            "%s: left out here, because their types are not read: %d of the tensors, first %s",
            q->path, c->n_unread, c->unread);
    return st;
}

static int64_t tensor_bytes(const struct tensor *t)
{
    const struct box whole = box_whole(t->ndim, t->shape);

    return box_elements(&whole) * dtype_bytes(t->dtype);
}

static int64_t all_bytes(const struct foreign_contents *c)
{
    int64_t bytes = 0;

    for (int i = 0; i < c->n_tensors; i++)
        bytes += tensor_bytes(&c->tensors[i]);
    return bytes;
}

/* "3", or "-" when the format does not say. */
static const char *step_text(char buf[SIZE_TEXT_MAX], const struct foreign_contents *c)
{
    int64_t step = piece_source_step(c->source);

    snprintf(buf, SIZE_TEXT_MAX, step < 0 ? "-" : "%lld", (long long)step);
    return buf;
}

static json_t *head_json(const struct foreign_contents *c, const char *path)
{
    return json_pack("{s:o, s:s, s:I, s:i, s:I}", "path", print_text(path), "format",
                     c->format->name, "step", (json_int_t)piece_source_step(c->source), "tensors",
                     c->n_tensors, "bytes", (json_int_t)all_bytes(c));
}

static void print_object(json_t *root)
{
    print_json(root);
    json_decref(root);
}

/* ---- ls ---- */

tp_status foreign_ls(const struct foreign_contents_request *q, bool json, struct tp_err *err)
{
    struct foreign_contents c;
    char size[SIZE_TEXT_MAX], step[SIZE_TEXT_MAX];
    tp_status st;

    TP_TRY(foreign_open_noted(&c, q, err));
    if (json) {
        json_t *list = json_array();

        json_array_append_new(list, head_json(&c, q->path));
        print_object(list);
    } else {
        printf("%-14s  %8s  %8s  %10s  %s\n", "FORMAT", "STEP", "TENSORS", "SIZE", "WRITTEN BY");
        printf("%-14s  %8s  %8d  %10s  %s\n", c.format->name, step_text(step, &c), c.n_tensors,
               size_format(size, all_bytes(&c)), c.format->title);
    }
    st = print_done(err);
done:
    foreign_contents_close(&c);
    return st;
}

/* ---- show ---- */

/* A print_entry_fn of the struct foreign_contents. */
static json_t *tensor_json(const void *ctx, int i)
{
    const struct foreign_contents *c = ctx;
    const struct tensor *t = &c->tensors[i];
    const int k = piece_source_find(c->source, t->group, t->name);

    return json_pack("{s:s, s:o, s:s, s:o, s:I, s:i}", "group", t->group, "name",
                     print_text(t->name), "dtype", dtype_name(t->dtype), "shape",
                     print_int_list(t->shape, t->ndim), "bytes", (json_int_t)tensor_bytes(t),
                     "pieces", piece_source_tensor(c->source, k).n);
}

static void show_json(const struct foreign_contents *c, const char *path)
{
    json_t *head = head_json(c, path), *left = json_array();

    for (int i = 0; i < piece_source_left(c->source); i++)
        json_array_append_new(left, print_text(piece_source_left_name(c->source, i)));
    json_object_del(head, "tensors"); /* which is how many */
    json_object_set_new(head, "others", left);
    print_json_with_list(head, "tensors", c->n_tensors, tensor_json, c);
    json_decref(head);
}

static void show_text(const struct foreign_contents *c, const char *path)
{
    char shape[SHAPE_TEXT], size[SIZE_TEXT_MAX], step[SIZE_TEXT_MAX];

    printf("path      ");
    print_safe(path);
    printf("\nformat    %s (%s)\nstep      %s\nsize      %s\n", c->format->title, c->format->name,
           step_text(step, c), size_format(size, all_bytes(c)));
    printf("\n%-6s  %-20s  %10s  %6s  %s\n", "DTYPE", "SHAPE", "BYTES", "PIECES", "TENSOR");
    for (int i = 0; i < c->n_tensors; i++) {
        const struct tensor *t = &c->tensors[i];
        const int k = piece_source_find(c->source, t->group, t->name);

        printf("%-6s  %-20s  %10s  %6d  ", dtype_name(t->dtype),
               box_format_shape(shape, sizeof shape, t->ndim, t->shape),
               size_format(size, tensor_bytes(t)), piece_source_tensor(c->source, k).n);
        print_tensor(t->group, t->name);
        putchar('\n');
    }
    for (int i = 0; i < piece_source_left(c->source); i++) {
        printf("%s", i ? "" : "\nwhat is not a tensor of the model:\n");
        print_safe(piece_source_left_name(c->source, i));
        putchar('\n');
    }
}

tp_status foreign_show(const struct foreign_contents_request *q, bool json, struct tp_err *err)
{
    struct foreign_contents c;
    tp_status st;

    TP_TRY(foreign_open_noted(&c, q, err));
    if (json)
        show_json(&c, q->path);
    else
        show_text(&c, q->path);
    st = print_done(err);
done:
    foreign_contents_close(&c);
    return st;
}

/* ---- show NAME ---- */

/* NAME, which is of group param, or GROUP/NAME. */
static int find_tensor(const struct foreign_contents *c, const char *name)
{
    for (int i = 0; i < c->n_tensors; i++) {
        const struct tensor *t = &c->tensors[i];
        size_t n = strlen(t->group);

        if ((strcmp(t->group, GROUP_PARAM) == 0 && strcmp(t->name, name) == 0) ||
            (strncmp(name, t->group, n) == 0 && name[n] == '/' &&
             strcmp(name + n + 1, t->name) == 0))
            return i;
    }
    return -1;
}

static void print_piece(const struct foreign_contents *c, const struct piece *p)
{
    char box[BOX_TEXT_MAX], stride[SHAPE_TEXT];

    printf("%-28s  %12lld  %-16s  ", box_format(box, &p->box), (long long)p->begin,
           p->decoder ? "-" : box_format_shape(stride, sizeof stride, p->ndim, p->stride));
    print_safe(file_table_path(piece_source_files(c->source), p->file));
    putchar('\n');
}

static json_t *piece_json(const struct foreign_contents *c, const struct piece *p)
{
    return json_pack("{s:o, s:o, s:o, s:I, s:o}", "offset", print_int_list(p->box.lo, p->ndim),
                     "shape", print_int_list(p->box.len, p->ndim), "file",
                     print_text(file_table_path(piece_source_files(c->source), p->file)), "byte",
                     (json_int_t)p->begin, "strides",
                     p->decoder ? json_null() : print_int_list(p->stride, p->ndim));
}

static void show_pieces(const struct foreign_contents *c, int i, bool json)
{
    const struct tensor *t = &c->tensors[i];
    const struct piece_tensor pieces =
        piece_source_tensor(c->source, piece_source_find(c->source, t->group, t->name));
    const struct piece_decoder *decoder = pieces.pieces->decoder;
    const char *joined = decoder ? decoder->joined : NULL;
    json_t *root = tensor_json(c, i), *list = json_array();
    char shape[SHAPE_TEXT];

    if (!json) {
        printf("tensor    %s/", t->group);
        print_safe(t->name);
        printf("\ndtype     %s\nshape     %s\n\n%-28s  %12s  %-16s  %s\n", dtype_name(t->dtype),
               box_format_shape(shape, sizeof shape, t->ndim, t->shape), "BOX", "BYTE", "STRIDES",
               "FILE");
    }
    for (int k = 0; k < pieces.n; k++) {
        json_array_append_new(list, piece_json(c, &pieces.pieces[k]));
        if (!json)
            print_piece(c, &pieces.pieces[k]);
    }
    if (joined && !json)
        printf("\nit is %s\n", joined);
    if (joined)
        json_object_set_new(root, "joined", json_string(joined));
    json_object_set_new(root, "pieces", list);
    if (json)
        print_json(root);
    json_decref(root);
}

tp_status foreign_show_tensor(const struct foreign_contents_request *q, const char *name, bool json,
                              struct tp_err *err)
{
    struct foreign_contents c;
    int i;
    tp_status st;

    TP_TRY(foreign_open_noted(&c, q, err));
    i = find_tensor(&c, name);
    if (i < 0) {
        st = tp_fail(err, TP_E_NOTFOUND, "%s: has no tensor %s; tp-ckpt show lists all", q->path,
                     name);
        goto done;
    }
    show_pieces(&c, i, json);
    st = print_done(err);
done:
    foreign_contents_close(&c);
    return st;
}

/* ---- verify ---- */

/* What is so of all formats: a folder is read without its model, too. */
#define UNPROVED_ANYWHERE "that the model has no other tensors, which tp-ckpt import compares"

#define UNPROVED_OPTIMIZER "anything of the optimizer's state, which is not read"

#define UNPROVED_TYPES "anything of the tensors whose types are not read"

/* Where no config.json of a known family has all weights. */
#define UNPROVED_SHAPES "that shapes are those of a config.json"

static json_t *unproved_json(const struct foreign_contents *c, bool shapes)
{
    json_t *list = json_array();

    if (c->format->unproved)
        json_array_append_new(list, json_string(c->format->unproved));
    if (!shapes)
        json_array_append_new(list, json_string(UNPROVED_SHAPES));
    if (c->refused)
        json_array_append_new(list, json_string(UNPROVED_OPTIMIZER));
    if (c->n_unread)
        json_array_append_new(list, json_string(UNPROVED_TYPES));
    json_array_append_new(list, json_string(UNPROVED_ANYWHERE));
    return list;
}

/* What was compared. */
struct verified {
    int64_t checked, unchecked; /* bytes */
    bool shapes;                /* with config.json */
};

static void print_verified(const struct foreign_contents *c, const char *path,
                           const struct verified *v, const struct tp_err *finding, bool json)
{
    char size[SIZE_TEXT_MAX], other[SIZE_TEXT_MAX];
    const bool ok = finding->status == TP_OK;

    if (json) {
        json_t *root =
            c->source ? head_json(c, path) : json_pack("{s:o}", "path", print_text(path));

        json_object_set_new(root, "ok", json_boolean(ok));
        json_object_set_new(root, "bytes_checked", json_integer(v->checked));
        json_object_set_new(root, "bytes_without_checksum", json_integer(v->unchecked));
        json_object_set_new(root, "findings",
                            ok ? json_array() : json_pack("[o]", print_text(finding->msg)));
        json_object_set_new(root, "not_proved", unproved_json(c, v->shapes));
        print_object(root);
        return;
    }
    if (!ok) {
        print_safe(finding->msg);
        printf("\ndamaged: ");
        print_safe(path);
        putchar('\n');
        return;
    }
    printf("intact: ");
    print_safe(path);
    printf(": %d tensors, each element once; %s agree with their CRC-32, %s have no checksum\n",
           c->n_tensors, size_format(size, v->checked), size_format(other, v->unchecked));
    printf("not proved: %s%s%s%s%s" UNPROVED_ANYWHERE "\n",
           c->format->unproved ? c->format->unproved : "", c->format->unproved ? "; " : "",
           v->shapes ? "" : UNPROVED_SHAPES "; ", c->refused ? UNPROVED_OPTIMIZER "; " : "",
           c->n_unread ? UNPROVED_TYPES "; " : "");
}

tp_status foreign_verify(const struct foreign_contents_request *q, bool json, struct tp_err *err)
{
    struct foreign_contents c;
    struct tp_err finding = { 0 };
    struct verified v = { 0 };
    tp_status st;

    st = foreign_open_noted(&c, q, &finding);
    if (!st)
        st = foreign_shapes_check(&v.shapes, &c, q, &finding);
    if (!st)
        st = foreign_contents_verify(&c, &v.checked, &v.unchecked, &finding);
    if (st != TP_OK && st != TP_E_CORRUPT && !c.incomplete) {
        *err = finding;
        goto done;
    }
    finding.status = st;
    print_verified(&c, q->path, &v, &finding, json);
    st = print_done(err);
    if (!st && finding.status)
        st = tp_fail(err, TP_E_NO, "%s", "");
done:
    foreign_contents_close(&c);
    return st;
}
