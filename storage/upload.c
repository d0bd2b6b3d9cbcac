/* storage/upload.c - see storage/upload.h. */
#include "storage/upload.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/stop.h"
#include "storage/location.h"
#include "storage/object.h"
#include "storage/remote.h"

/* What is done after a failure does not wait for long, and after a signal even less. */
enum { ABORT_S = 2, ABORT_TRIES = 2 };
enum { REPLY_BYTES = 8192, QUERY_MAX = 3 * UPLOAD_ID_MAX + 64 };
enum { ETAG_MAX = UPLOAD_RECEIPT_WORDS * sizeof(uint64_t) };

static const char only_new[] = "if-none-match: *";
static const char completed[] = "<CompleteMultipartUploadResult";

struct upload {
    char path[PATH_MAX];
    char id[UPLOAD_ID_MAX]; /* as it is in a query: encoded */
    int64_t size, part_bytes;
    int n_parts;
    uint64_t *receipts; /* [n_parts * UPLOAD_RECEIPT_WORDS] the ETag of each part, as a text */
    bool begun, completed;
};

static char *etag_of(const struct upload *u, int part)
{
    return (char *)(u->receipts + (int64_t)part * UPLOAD_RECEIPT_WORDS);
}

int64_t upload_part_bytes(int64_t size)
{
    const int64_t unit = 1 << 20;
    const int64_t n = ((size + UPLOAD_PARTS_MAX - 1) / UPLOAD_PARTS_MAX + unit - 1) / unit * unit;

    return n > UPLOAD_PART_BYTES_MIN ? n : UPLOAD_PART_BYTES_MIN;
}

/* Take the id of the upload from the store's reply. */
static bool take_id(struct upload *u, const char *text)
{
    const char *begin = strstr(text, "<UploadId>"), *end;
    char id[UPLOAD_ID_MAX / 3];

    begin = begin ? begin + strlen("<UploadId>") : "";
    end = strstr(begin, "</UploadId>");
    if (!end || end == begin || end - begin >= (long)sizeof id)
        return false;
    memcpy(id, begin, (size_t)(end - begin));
    id[end - begin] = 0;
    return !strpbrk(id, "&<>") && location_encode(u->id, sizeof u->id, id, false);
}

static tp_status initiate(struct upload *u, struct tp_err *err)
{
    char text[REPLY_BYTES] = "";
    const struct remote_request q = { .method = "POST",
                                      .path = u->path,
                                      .query = "uploads=",
                                      .body = "",
                                      .into = text,
                                      .room = sizeof text - 1,
                                      .status = 200,
                                      .may_stop = true };
    struct http_reply reply;
    tp_status st = remote_send(&reply, &q, err);

    if (st)
        return st;
    if (reply.status != 200)
        return remote_fail(&q, &reply, err);
    if (!take_id(u, text))
        return tp_fail(err, TP_E_IO, "%s: the store did not begin an upload", u->path);
    u->begun = true;
    return TP_OK;
}

void upload_shorten(struct upload *u, int64_t size)
{
    u->size = size;
    u->n_parts = size > 0 ? (int)((size + u->part_bytes - 1) / u->part_bytes) : 1;
}

/* An upload that is not begun. */
static tp_status upload_new(struct upload **out, const char *path, int64_t size, struct tp_err *err)
{
    struct upload *u = calloc(1, sizeof *u);
    tp_status st = TP_OK;

    if (!u)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to write it", path);
    u->part_bytes = upload_part_bytes(size);
    upload_shorten(u, size);
    u->receipts = calloc((size_t)u->n_parts * UPLOAD_RECEIPT_WORDS, sizeof *u->receipts);
    if (!u->receipts)
        TP_TRY(tp_fail(err, TP_E_NOMEM, "%s: no memory to write it", path));
    if (snprintf(u->path, sizeof u->path, "%s", path) >= (int)sizeof u->path)
        TP_TRY(tp_fail(err, TP_E_USAGE, "%.200s...: the path is too long", path));
    *out = u;
    u = NULL;
done:
    upload_end(u);
    return st;
}

tp_status upload_begin(struct upload **out, const char *path, int64_t size, struct tp_err *err)
{
    struct upload *u = NULL;
    tp_status st = upload_new(&u, path, size, err);

    if (!st)
        st = initiate(u, err);
    if (st)
        upload_end(u);
    else
        *out = u;
    return st;
}

tp_status upload_join(struct upload **out, const char *path, int64_t size, const char *id,
                      struct tp_err *err)
{
    tp_status st = upload_new(out, path, size, err);

    if (!st)
        snprintf((*out)->id, sizeof(*out)->id, "%s", id);
    return st;
}

const char *upload_id(const struct upload *u)
{
    return u->id;
}

uint64_t *upload_receipts(const struct upload *u, int64_t *n_words)
{
    *n_words = (int64_t)u->n_parts * UPLOAD_RECEIPT_WORDS;
    return u->receipts;
}

bool upload_has_part(const struct upload *u, int part)
{
    return etag_of(u, part)[0] != 0;
}

tp_status upload_part(struct upload *u, int part, const void *data, size_t n, struct tp_err *err)
{
    char query[QUERY_MAX], text[REPLY_BYTES];
    const struct remote_request q = { .method = "PUT",
                                      .path = u->path,
                                      .query = query,
                                      .body = data,
                                      .body_bytes = n,
                                      .into = text,
                                      .room = sizeof text,
                                      .status = 200,
                                      .may_stop = true };
    struct http_reply reply;
    tp_status st;

    if (part < 0 || part >= u->n_parts)
        return tp_fail(err, TP_E_INTERNAL, "%s: part %d of %d", u->path, part, u->n_parts);
    snprintf(query, sizeof query, "partNumber=%d&uploadId=%s", part + 1, u->id);
    st = remote_send(&reply, &q, err);
    if (st)
        return st;
    if (reply.status != 200)
        return remote_fail(&q, &reply, err);
    if (!reply.etag[0] || strlen(reply.etag) >= ETAG_MAX || strpbrk(reply.etag, "<>&"))
        return tp_fail(err, TP_E_IO, "%s: the store did not confirm part %d", u->path, part + 1);
    memcpy(etag_of(u, part), reply.etag, strlen(reply.etag) + 1);
    return TP_OK;
}

/* The list of parts that completes an upload; malloc'ed. */
static char *list_parts(const struct upload *u, size_t *n)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, n);

    if (!f)
        return NULL;
    fputs("<CompleteMultipartUpload>", f);
    for (int i = 0; i < u->n_parts; i++)
        fprintf(f, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", i + 1, etag_of(u, i));
    fputs("</CompleteMultipartUpload>", f);
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* Whether a reply to the completion says that the object is there now. */
static bool is_completed(const struct http_reply *reply, const char *text)
{
    return reply->status == 200 && !reply->too_long &&
           memmem(text, reply->bytes, completed, strlen(completed));
}

/* Whether the store knows the upload no longer: then it was completed, because nobody else ends it,
 * except Amazon's store after a conflict. While it does, an object of this name is another
 * writer's, even one of the same length. */
static bool is_gone(const struct upload *u)
{
    char query[QUERY_MAX], text[REPLY_BYTES];
    const struct remote_request q = { .method = "GET",
                                      .path = u->path,
                                      .query = query,
                                      .into = text,
                                      .room = sizeof text,
                                      .status = 200 };
    struct http_reply reply;
    struct tp_err ignored;

    snprintf(query, sizeof query, "max-parts=1&uploadId=%s", u->id);
    return !remote_send(&reply, &q, &ignored) && reply.status == 404;
}

/* Whether the object exists with its length. */
static bool is_there(const struct upload *u)
{
    struct object o = OBJECT_NONE;
    struct tp_err ignored;
    int64_t size = -1;
    bool found = !object_open(&o, &size, u->path, &ignored) && size == u->size;

    object_close(&o);
    return found;
}

static tp_status exists(const struct upload *u, struct tp_err *err)
{
    return tp_fail(err, TP_E_EXISTS, "%s: exists already; another writer was faster", u->path);
}

/* Older releases of Ceph complete an upload also where an object exists, and ignore the condition.
 * There this keeps a late writer from replacing the shards of a committed step. */
static tp_status check_free(const struct upload *u, struct tp_err *err)
{
    bool is_taken = false;
    tp_status st = object_exists(&is_taken, u->path, err);

    return st || !is_taken ? st : exists(u, err);
}

tp_status upload_complete(struct upload *u, struct tp_err *err)
{
    char query[QUERY_MAX], reply_text[REPLY_BYTES];
    struct remote_request q = { .method = "POST",
                                .path = u->path,
                                .query = query,
                                .headers = { only_new },
                                .once = true,
                                .n_headers = 1,
                                .into = reply_text,
                                .room = sizeof reply_text,
                                .status = 200 };
    struct http_reply reply;
    char *text = list_parts(u, &q.body_bytes);
    bool is_unclear; /* whether this upload, or another writer, made what is there */
    tp_status st;

    if ((st = check_free(u, err))) {
        free(text);
        return st;
    }
    if (!text)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to write it", u->path);
    snprintf(query, sizeof query, "uploadId=%s", u->id);
    q.body = text;
    st = remote_send(&reply, &q, err);
    free(text);
    if (st)
        return st;
    is_unclear = reply.status == 200 || (reply.tries > 1 && reply.status == 412);
    if (is_completed(&reply, reply_text) ||
        (!reply.conflicted &&
         ((reply.tries > 1 && reply.status == 404) || (is_unclear && is_gone(u))) && is_there(u))) {
        u->completed = true;
        return TP_OK;
    }
    if (reply.status == 412)
        return exists(u, err);
    return reply.status == 200
               ? tp_fail(err, TP_E_IO, "%s: the server answers 200, but the object does not exist",
                         u->path)
               : remote_fail(&q, &reply, err);
}

void upload_end(struct upload *u)
{
    char query[QUERY_MAX];
    struct http_reply reply;
    struct tp_err ignored;

    if (!u)
        return;
    if (u->begun && !u->completed) {
        snprintf(query, sizeof query, "uploadId=%s", u->id);
        remote_send(&reply,
                    &(struct remote_request){ .method = "DELETE",
                                              .path = u->path,
                                              .query = query,
                                              .within_s = ABORT_S,
                                              .most_tries = stop_requested() ? ABORT_TRIES : 0,
                                              .status = 204 },
                    &ignored);
    }
    free(u->receipts);
    free(u);
}
