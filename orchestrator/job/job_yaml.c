/* orchestrator/job/job_yaml.c - see orchestrator/job/job_yaml.h. */
#include "orchestrator/job/job_yaml.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "orchestrator/job/job_key_set.h"
#include "orchestrator/job/job_value.h"

struct job_yaml_reader {
    yaml_document_t *doc;
    const char *text;
    size_t size;
    struct job *job;
    const struct job_backend *const *backends;
    void **options; /* of each backend */
    const char *path;
    struct arena *arena;
    struct tp_err *err;
};

#define FAIL(r, node, ...) fail_at(r, node, __VA_ARGS__)

__attribute__((format(printf, 3, 4))) static tp_status fail_at(struct job_yaml_reader *r,
                                                               const yaml_node_t *node,
                                                               const char *fmt, ...)
{
    char text[TP_ERR_MAX / 2];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!node)
        return tp_fail(r->err, TP_E_USAGE, "%s: %s", r->path, text);
    return tp_fail(r->err, TP_E_USAGE, "%s:%zu: %s", r->path, node->start_mark.line + 1, text);
}

/* The text of a scalar. NULL: not a scalar, or its text has a zero byte. */
static const char *scalar(const yaml_node_t *n)
{
    const char *text = n && n->type == YAML_SCALAR_NODE ? (const char *)n->data.scalar.value : NULL;

    return text && strlen(text) == n->data.scalar.length ? text : NULL;
}

/* YAML's null, which people write for "not set". */
static bool is_null(const yaml_node_t *n)
{
    const char *text = scalar(n);

    return text && n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
}

static tp_status read_words(struct job_yaml_reader *r, const yaml_node_t *n, struct job_words *out)
{
    int64_t count = n->data.sequence.items.top - n->data.sequence.items.start;

    out->word = arena_array(r->arena, (size_t)count + 1, sizeof *out->word);
    if (!out->word)
        return tp_fail(r->err, TP_E_NOMEM, "no memory");
    for (out->n = 0; out->n < count; out->n++) {
        const yaml_node_t *item =
            yaml_document_get_node(r->doc, n->data.sequence.items.start[out->n]);

        if (!scalar(item))
            return FAIL(r, item, "expected a plain word");
        out->word[out->n] = arena_strdup(r->arena, scalar(item));
    }
    return TP_OK;
}

static tp_status read_specs(struct job_yaml_reader *r, const yaml_node_t *n,
                            const struct job_words *words)
{
    r->job->layouts.allow = arena_array(r->arena, (size_t)words->n + 1, sizeof(struct spec));
    if (!r->job->layouts.allow || words->n > JOB_SPECS_MAX)
        return FAIL(r, n, "layouts.allow: at most %d layouts", JOB_SPECS_MAX);
    for (int i = 0; i < words->n; i++)
        if (spec_parse(&r->job->layouts.allow[i], words->word[i], r->err)) {
            char inner[TP_ERR_MAX];

            snprintf(inner, sizeof inner, "%s", r->err->msg);
            return FAIL(r, n, "layouts.allow: %s", inner);
        }
    r->job->layouts.n_allow = words->n;
    return TP_OK;
}

/* Nodes as "a:2" or "a". Names are plain words, and no two are equal. */
static tp_status read_nodes(struct job_yaml_reader *r, const yaml_node_t *n,
                            const struct job_words *words)
{
    struct job *j = r->job;

    if (words->n < 1 || words->n > JOB_NODES_MAX)
        return FAIL(r, n, "nodes: expected 1 to %d nodes", JOB_NODES_MAX);
    j->nodes = arena_array(r->arena, (size_t)words->n, sizeof *j->nodes);
    if (!j->nodes)
        return tp_fail(r->err, TP_E_NOMEM, "no memory");
    for (int i = 0; i < words->n; i++) {
        char *colon = strrchr(words->word[i], ':'), *end = NULL;
        long slots = colon ? strtol(colon + 1, &end, 10) : 1;

        if (colon && (end == colon + 1 || *end || slots < 1 || slots > JOB_RANKS_MAX))
            return FAIL(r, n, "nodes: \"%s\": expected name:slots", words->word[i]);
        if (colon)
            *colon = 0;
        if (!words->word[i][0] || words->word[i][0] == '-' || strlen(words->word[i]) > 63 ||
            strspn(words->word[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                   "._-") != strlen(words->word[i]))
            return FAIL(r, n, "nodes: \"%s\" is not a name for a node", words->word[i]);
        for (int k = 0; k < i; k++)
            if (strcmp(j->nodes[k].name, words->word[i]) == 0)
                return FAIL(r, n, "nodes: \"%s\" occurs twice", words->word[i]);
        j->nodes[i] = (struct job_node){ .name = words->word[i], .slots = (int)slots };
    }
    j->n_nodes = words->n;
    return TP_OK;
}

/* "nodes: 4" means n0 .. n3. */
static tp_status count_nodes(struct job_yaml_reader *r, const yaml_node_t *n, const char *text)
{
    struct job_words words = { 0 };
    char *end;
    long count = strtol(text, &end, 10);

    if (end == text || *end || count < 1 || count > JOB_NODES_MAX)
        return FAIL(r, n,
                    "nodes: \"%s\": expected a list such as [a:2, b:2], or a number from 1 to %d",
                    text, JOB_NODES_MAX);
    words.word = arena_array(r->arena, (size_t)count, sizeof *words.word);
    if (!words.word)
        return tp_fail(r->err, TP_E_NOMEM, "no memory");
    for (; words.n < count; words.n++)
        words.word[words.n] = arena_printf(r->arena, "n%d", words.n);
    return read_nodes(r, n, &words);
}

/* The field that a key sets. */
static void *field_of(const struct job_yaml_reader *r, const struct job_key *k)
{
    for (int i = 0; r->backends[i]; i++)
        if (strcmp(k->section, r->backends[i]->name) == 0)
            return (char *)r->options[i] + k->offset;
    return (char *)r->job + k->offset;
}

static tp_status read_backend(struct job_yaml_reader *r, const yaml_node_t *n, const char *text)
{
    char names[256] = "";

    for (int i = 0; r->backends[i]; i++) {
        size_t at = strlen(names);

        if (text && strcmp(text, r->backends[i]->name) == 0) {
            r->job->backend = r->backends[i];
            r->job->backend_options = r->options[i];
            return TP_OK;
        }
        snprintf(names + at, sizeof names - at, "%s%s", i ? "|" : "", r->backends[i]->name);
    }
    return FAIL(r, n, "backend: expected %s, found \"%.80s\"", names, text ? text : "a list");
}

static tp_status read_list(struct job_yaml_reader *r, const struct job_key *k, const yaml_node_t *n)
{
    struct job_words words = { 0 };
    const char *text = scalar(n);
    tp_status st;

    if (text && k->kind == JOB_KIND_NODES && strspn(text, "0123456789") == strlen(text))
        return count_nodes(r, n, text);
    if (text) {
        st = job_split(&words, text, r->arena, r->err);
        if (st)
            return FAIL(r, n, "%s: a quote is not closed", k->name);
    } else if (n->type != YAML_SEQUENCE_NODE) {
        return FAIL(r, n, "%s: expected a list", k->name);
    } else if ((st = read_words(r, n, &words))) {
        return st;
    }
    if (k->kind == JOB_KIND_SPECS)
        return read_specs(r, n, &words);
    if (k->kind == JOB_KIND_NODES)
        return read_nodes(r, n, &words);
    memcpy(field_of(r, k), &words, sizeof words);
    return TP_OK;
}

static tp_status read_value(struct job_yaml_reader *r, const struct job_key *k,
                            const yaml_node_t *n)
{
    const char *text = scalar(n), *expected = "one value";

    if (is_null(n))
        return FAIL(r, n, "%s%s%s: is null; leave the key out for its default", k->section,
                    k->section[0] ? "." : "", k->name);
    if (k->kind == JOB_KIND_WORDS || k->kind == JOB_KIND_SPECS || k->kind == JOB_KIND_NODES)
        return read_list(r, k, n);
    if (k->kind == JOB_KIND_BACKEND)
        return read_backend(r, n, text);
    if (!text || job_value(field_of(r, k), &expected, k, text, r->job->dir, r->arena, r->err))
        return FAIL(r, n, "%s%s%s: expected %s, found \"%s\"", k->section, k->section[0] ? "." : "",
                    k->name, expected,
                    text                          ? text
                    : n->type == YAML_SCALAR_NODE ? "a text with a zero byte"
                                                  : "a list or a section");
    return TP_OK;
}

static tp_status refuse_key(struct job_yaml_reader *r, const yaml_node_t *key, const char *section,
                            const char *name)
{
    const struct job_key *inner =
        name && !section[0] ? job_key_set_in_section(r->backends, name) : NULL;
    const char *similar = name ? job_key_set_similar(r->backends, section, name) : NULL;
    const char *dot = section[0] ? "." : "";

    if (inner)
        return FAIL(r, key, "\"%s\" is a key of the section \"%s\": write %s: {%s: ...}", name,
                    inner->section, inner->section, inner->name);
    if (similar)
        return FAIL(
            r, key,
            "there is no key \"%s%s%s\"; did you mean \"%s%s%s\"? (tp-run --example shows all)",
            section, dot, name, section, dot, similar);
    return FAIL(r, key, "there is no key \"%s%s%s\" (tp-run --example shows all)", section, dot,
                name ? name : "?");
}

/* Whether no key before `p` has this name. */
static bool is_first(const struct job_yaml_reader *r, const yaml_node_t *map,
                     const yaml_node_pair_t *p, const char *name)
{
    for (const yaml_node_pair_t *q = map->data.mapping.pairs.start; q < p; q++) {
        const char *other = scalar(yaml_document_get_node(r->doc, q->key));

        if (other && strcmp(name, other) == 0)
            return false;
    }
    return true;
}

static tp_status read_mapping(struct job_yaml_reader *r, const yaml_node_t *map,
                              const char *section)
{
    tp_status st = TP_OK;

    for (yaml_node_pair_t *p = map->data.mapping.pairs.start;
         st == TP_OK && p < map->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(r->doc, p->key);
        const yaml_node_t *value = yaml_document_get_node(r->doc, p->value);
        const char *name = scalar(key);
        const struct job_key *k = name ? job_key_set_find(r->backends, section, name) : NULL;

        if (name && !is_first(r, map, p, name))
            return FAIL(r, key, "\"%s\" occurs twice", name);
        if (k) {
            st = read_value(r, k, value);
        } else if (!name || section[0] || !job_key_set_has_section(r->backends, name)) {
            return refuse_key(r, key, section, name);
        } else if (value->type == YAML_MAPPING_NODE) {
            st = read_mapping(r, value, name);
        } else if (!scalar(value) || scalar(value)[0]) { /* a section may be empty */
            return FAIL(r, value, "%s: expected keys under it", name);
        }
    }
    return st;
}

/* Whether only spaces are before a tab in line `n` of the text, counted from 0. */
static bool begins_with_tab(const char *text, size_t size, size_t n)
{
    const char *at = text, *end = text + size;

    for (; n > 0 && at; n--) {
        at = memchr(at, '\n', (size_t)(end - at));
        at = at ? at + 1 : NULL;
    }
    while (at && at < end && *at == ' ')
        at++;
    return at && at < end && *at == '\t';
}

/* The text is not YAML. The usual reason is a tab, which libyaml does not name. */
static tp_status refuse_text(struct job_yaml_reader *r, const yaml_parser_t *parser)
{
    size_t line = parser->problem_mark.line;
    const char *problem = parser->problem ? parser->problem : "?";

    if (begins_with_tab(r->text, r->size, line))
        problem = "the line begins with a tab; indent it with spaces";
    return tp_fail(r->err, TP_E_USAGE, "%s:%zu: not YAML: %s", r->path, line + 1, problem);
}

/* Refuse a second document: it would be ignored, although it looks like a part of the job. */
static tp_status expect_end(struct job_yaml_reader *r, yaml_parser_t *parser)
{
    yaml_document_t more;
    tp_status st = TP_OK;

    if (!yaml_parser_load(parser, &more))
        return refuse_text(r, parser);
    if (yaml_document_get_root_node(&more))
        st = tp_fail(r->err, TP_E_USAGE, "%s:%zu: a second document (---); a job is one document",
                     r->path, more.start_mark.line + 1);
    yaml_document_delete(&more);
    return st;
}

static tp_status load_text(struct job_yaml_reader *r, const char *text, size_t size)
{
    yaml_parser_t parser;
    yaml_node_t *root;
    tp_status st;

    r->text = text;
    r->size = size;
    if (!yaml_parser_initialize(&parser))
        return tp_fail(r->err, TP_E_NOMEM, "no memory");
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    if (!yaml_parser_load(&parser, r->doc)) {
        st = refuse_text(r, &parser);
        yaml_parser_delete(&parser);
        return st;
    }
    root = yaml_document_get_root_node(r->doc);
    if (!root || root->type != YAML_MAPPING_NODE)
        st = tp_fail(r->err, TP_E_USAGE, "%s: a job file is keys and values; see tp-run --example",
                     r->path);
    else
        st = read_mapping(r, root, "");
    yaml_document_delete(r->doc);
    if (st == TP_OK)
        st = expect_end(r, &parser);
    yaml_parser_delete(&parser);
    return st;
}

static tp_status set_default(struct job_yaml_reader *r, const struct job_key *k)
{
    yaml_document_t doc;
    char text[256];
    struct job_yaml_reader inner = *r;
    int n = k->section[0]
                ? snprintf(text, sizeof text, "%s: {%s: %s}", k->section, k->name,
                           k->value[0] ? k->value : "\"\"")
                : snprintf(text, sizeof text, "%s: %s", k->name, k->value[0] ? k->value : "\"\"");

    inner.doc = &doc;
    return load_text(&inner, text, (size_t)n);
}

static tp_status set_defaults(struct job_yaml_reader *r, const struct job_key *keys)
{
    tp_status st = TP_OK;

    for (const struct job_key *k = keys; k && st == TP_OK && k->kind != JOB_KIND_END; k++)
        if (k->value)
            st = set_default(r, k);
    return st;
}

/* A struct of options for each backend, because the file may set options of other backends too. */
static tp_status make_options(struct job_yaml_reader *r)
{
    int n = 0;

    while (r->backends[n])
        n++;
    r->options = arena_array(r->arena, (size_t)n + 1, sizeof *r->options);
    for (int i = 0; r->options && i < n; i++) {
        size_t bytes = r->backends[i]->options_bytes;

        r->options[i] = arena_alloc(r->arena, bytes + 1);
        if (!r->options[i])
            return tp_fail(r->err, TP_E_NOMEM, "no memory for the job file");
        memset(r->options[i], 0, bytes);
    }
    if (!r->options)
        return tp_fail(r->err, TP_E_NOMEM, "no memory for the job file");
    r->job->backend = r->backends[0];
    r->job->backend_options = r->options[0];
    return TP_OK;
}

tp_status job_yaml(struct job *job, const char *text, size_t size,
                   const struct job_backend *const *backends, struct arena *arena,
                   struct tp_err *err)
{
    yaml_document_t doc;
    struct job_yaml_reader r = {
        .doc = &doc, .job = job, .backends = backends, .path = job->path, .arena = arena, .err = err
    };
    tp_status st = make_options(&r);

    if (st == TP_OK)
        st = set_defaults(&r, job_keys());
    for (int i = 0; st == TP_OK && backends[i]; i++)
        st = set_defaults(&r, backends[i]->keys);
    return st ? st : load_text(&r, text, size);
}
