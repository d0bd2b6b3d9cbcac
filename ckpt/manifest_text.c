/* ckpt/manifest_text.c - see ckpt/manifest_text.h. */
#include "ckpt/manifest_text.h"

#include <string.h>

#include "ckpt/manifest.h"
#include "ckpt/sha256.h"

enum { MEMBERS_MAX = 1000, KEY_MAX = 200 };

static const char *const list_names[MANIFEST_LISTS] = { "tensors", "shards" };

/* Members that are read; others are checked and left out. */
static const char *const head_names[] = { "format", "version", "save_id",  "epoch",       "step",
                                          "layout", "train",   "checksum", "model_config" };

/* ---- the checksum ---- */

static tp_status hash_body(char sha[SHA256_TEXT], const struct json_scan_input *in, int64_t n,
                           struct tp_err *err)
{
    char part[4096];
    struct sha256 *h = NULL;
    tp_status st = sha256_new(&h, err);

    if (st)
        return st;
    for (int64_t at = 0; at < n && !st; at += (int64_t)sizeof part) {
        size_t size = n - at < (int64_t)sizeof part ? (size_t)(n - at) : sizeof part;

        st = json_scan_input_read(in, at, part, size, err);
        sha256_add(h, part, st ? 0 : size);
    }
    sha256_end(h, sha);
    return st;
}

static tp_status check_checksum(const struct json_scan_input *in, const struct member_reader *p)
{
    enum { HEAD = sizeof MANIFEST_CHECKSUM_HEAD - 1, END = sizeof MANIFEST_CHECKSUM_END - 1 };
    enum { SHA = SHA256_TEXT - 1, TAIL = HEAD + SHA + END };
    char tail[TAIL] = "", found[SHA256_TEXT];
    tp_status st = TP_OK;

    if (in->size >= TAIL)
        st = json_scan_input_read(in, in->size - TAIL, tail, TAIL, p->err);
    if (st)
        return st;
    if (memcmp(tail, MANIFEST_CHECKSUM_HEAD, HEAD) != 0 ||
        memcmp(tail + HEAD + SHA, MANIFEST_CHECKSUM_END, END) != 0)
        return member_fail(p, "does not end with its checksum: the file is damaged or truncated");
    st = hash_body(found, in, in->size - TAIL, p->err);
    if (!st && memcmp(found, tail + HEAD, SHA) != 0)
        st = member_fail(
            p, "has the SHA-256 %.16s..., but its last line says %.16s...: the file is damaged",
            found, tail + HEAD);
    return st;
}

/* ---- the members ---- */

static tp_status parse(json_t **out, const struct json_scan_text *text,
                       const struct member_reader *p)
{
    json_error_t why;

    *out = json_loadb(text->text, text->n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    return *out ? TP_OK : member_fail(p, "is not a JSON object: %s", why.text);
}

/* The list that a key names; MANIFEST_LISTS: none. */
static enum manifest_list list_of(const char *key)
{
    int i = 0;

    while (i < MANIFEST_LISTS && strcmp(key, list_names[i]) != 0)
        i++;
    return (enum manifest_list)i;
}

static tp_status count_entries(struct manifest_text *t, enum manifest_list list,
                               const struct member_reader *p)
{
    bool is_list = false, more = true;
    tp_status st;

    TP_TRY(json_scan_enter(t->scan, '[', &is_list, p->err));
    if (!is_list)
        return json_scan_skip(t->scan, p->err);
    for (t->n_entries[list] = 0;; t->n_entries[list]++) {
        TP_TRY(json_scan_entry(t->scan, &more, p->err));
        if (!more)
            break;
        TP_TRY(json_scan_skip(t->scan, p->err));
    }
done:
    return st;
}

/* Remember a key, because no key may occur twice. */
static tp_status add_key(struct manifest_text *t, const char *key, const struct member_reader *p)
{
    if (json_object_get(t->head, key))
        return member_fail(p, "is not a JSON object: member '%s' occurs twice", key);
    if (strlen(key) > KEY_MAX || json_object_size(t->head) == MEMBERS_MAX)
        return member_fail(p, "has more than %d members, or a key of more than %d bytes",
                           MEMBERS_MAX, KEY_MAX);
    return json_object_set_new(t->head, key, json_null()) ? member_no_memory(p) : TP_OK;
}

static tp_status read_member(struct manifest_text *t, const char *key,
                             const struct member_reader *p)
{
    struct json_scan_text text;
    json_t *value = NULL;
    tp_status st;

    TP_TRY(json_scan_value(t->scan, &text, p->err));
    TP_TRY(parse(&value, &text, p));
    for (size_t i = 0; i < sizeof head_names / sizeof *head_names; i++)
        if (strcmp(key, head_names[i]) == 0 && json_object_set(t->head, key, value) != 0)
            st = member_no_memory(p);
done:
    json_decref(value);
    return st;
}

/* Go to the next member. *key is a JSON string, or NULL after the last one. */
static tp_status next_member(struct manifest_text *t, json_t **key, const struct member_reader *p)
{
    struct json_scan_text text;
    bool more;
    tp_status st = json_scan_member(t->scan, &text, &more, p->err);

    json_decref(*key);
    *key = NULL;
    return st || !more ? st : parse(key, &text, p);
}

tp_status manifest_text_open(struct manifest_text *t, const struct json_scan_input *in,
                             const struct member_reader *p)
{
    json_t *key = NULL;
    tp_status st;

    *t = (struct manifest_text){ .head = json_object() };
    for (int i = 0; i < MANIFEST_LISTS; i++)
        t->n_entries[i] = -1;
    if (!t->head)
        return member_no_memory(p);
    TP_TRY(check_checksum(in, p));
    TP_TRY(json_scan_open(&t->scan, in, p->err));
    TP_TRY(json_scan_enter(t->scan, '{', NULL, p->err));
    while (!(st = next_member(t, &key, p)) && key) {
        const char *name = json_string_value(key);

        TP_TRY(add_key(t, name, p));
        if (list_of(name) != MANIFEST_LISTS)
            TP_TRY(count_entries(t, list_of(name), p));
        else
            TP_TRY(read_member(t, name, p));
    }
    if (!st)
        st = json_scan_end(t->scan, p->err);
done:
    json_decref(key);
    return st;
}

/* ---- the lists ---- */

static tp_status read_entries(struct manifest_text *t, enum manifest_list list,
                              manifest_entry_fn read, void *ctx, const struct member_reader *p)
{
    struct json_scan_text text;
    bool more = false;
    tp_status st = json_scan_enter(t->scan, '[', NULL, p->err);

    for (int64_t i = 0; !st; i++) {
        json_t *entry = NULL;

        TP_TRY(json_scan_entry(t->scan, &more, p->err));
        if (more != (i < t->n_entries[list]))
            return member_fail(p, "changed while it was read");
        if (!more)
            break;
        TP_TRY(json_scan_value(t->scan, &text, p->err));
        TP_TRY(parse(&entry, &text, p));
        st = read(ctx, list, i, entry);
        json_decref(entry);
    }
done:
    return st;
}

tp_status manifest_text_lists(struct manifest_text *t, manifest_entry_fn read, void *ctx,
                              const struct member_reader *p)
{
    json_t *key = NULL;
    tp_status st;

    json_scan_rewind(t->scan);
    TP_TRY(json_scan_enter(t->scan, '{', NULL, p->err));
    while (!(st = next_member(t, &key, p)) && key) {
        enum manifest_list list = list_of(json_string_value(key));

        if (list == MANIFEST_LISTS)
            TP_TRY(json_scan_skip(t->scan, p->err));
        else
            TP_TRY(read_entries(t, list, read, ctx, p));
    }
done:
    json_decref(key);
    return st;
}

void manifest_text_close(struct manifest_text *t)
{
    json_scan_close(t->scan);
    json_decref(t->head);
    *t = (struct manifest_text){ .scan = NULL };
}
