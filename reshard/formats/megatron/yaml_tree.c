/* reshard/formats/megatron/yaml_tree.c - see reshard/formats/megatron/yaml_tree.h. */
#include "reshard/formats/megatron/yaml_tree.h"

#include <stdlib.h>
#include <string.h>

enum { LINE_WIDTH = 80, OPEN_MAX = 1000 };

/* ---- reading ---- */

/* Whether too many brackets are open at one place. For each token libyaml 0.2.5 looks at all that
 * are open, so it needs minutes for a megabyte of them. Quotes and comments count too. */
static bool is_too_deep(const char *text, size_t size)
{
    long open = 0;

    for (size_t i = 0; i < size && open <= OPEN_MAX; i++) {
        open += text[i] == '[' || text[i] == '{';
        if (open > 0)
            open -= text[i] == ']' || text[i] == '}';
    }
    return open > OPEN_MAX;
}

tp_status yaml_tree_parse(struct yaml_tree *out, const char *text, size_t size, const char *path,
                          struct tp_err *err)
{
    yaml_parser_t parser;
    const yaml_node_t *root;
    tp_status st = TP_OK;

    out->is_open = false;
    if (is_too_deep(text, size))
        return tp_fail(err, TP_E_CORRUPT, "%s: has more than %d brackets that are not closed", path,
                       OPEN_MAX);
    if (!yaml_parser_initialize(&parser))
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to read it", path);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    out->is_open = yaml_parser_load(&parser, &out->document);
    root = out->is_open ? yaml_document_get_root_node(&out->document) : NULL;
    if (!out->is_open)
        st = tp_fail(err, parser.error == YAML_MEMORY_ERROR ? TP_E_NOMEM : TP_E_CORRUPT,
                     "%s:%zu: is not YAML: %s", path, parser.problem_mark.line + 1,
                     parser.problem ? parser.problem : "no memory");
    else if (!root || root->type != YAML_MAPPING_NODE)
        st = tp_fail(err, TP_E_CORRUPT, "%s: has no keys and values", path);
    yaml_parser_delete(&parser);
    return st;
}

void yaml_tree_free(struct yaml_tree *t)
{
    if (t->is_open)
        yaml_document_delete(&t->document);
    t->is_open = false;
}

int yaml_tree_root(struct yaml_tree *t)
{
    return t->is_open ? 1 : 0; /* libyaml counts from 1, and the root is the first */
}

static yaml_node_t *node_of(struct yaml_tree *t, int node, yaml_node_type_t type)
{
    yaml_node_t *n = t->is_open && node > 0 ? yaml_document_get_node(&t->document, node) : NULL;

    return n && n->type == type ? n : NULL;
}

bool yaml_tree_is_plain(struct yaml_tree *t, int node)
{
    const yaml_node_t *n = node_of(t, node, YAML_SCALAR_NODE);

    return n && n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

const char *yaml_tree_text(struct yaml_tree *t, int node)
{
    const yaml_node_t *n = node_of(t, node, YAML_SCALAR_NODE);
    const char *text = n ? (const char *)n->data.scalar.value : NULL;

    if (!text || strlen(text) != n->data.scalar.length)
        return NULL;
    if (yaml_tree_is_plain(t, node) &&
        (!*text || strcmp(text, "null") == 0 || strcmp(text, "~") == 0))
        return NULL;
    return text;
}

int yaml_tree_count(struct yaml_tree *t, int list)
{
    const yaml_node_t *n = node_of(t, list, YAML_SEQUENCE_NODE);

    return n ? (int)(n->data.sequence.items.top - n->data.sequence.items.start) : 0;
}

int yaml_tree_item(struct yaml_tree *t, int list, int i)
{
    return i < yaml_tree_count(t, list)
               ? node_of(t, list, YAML_SEQUENCE_NODE)->data.sequence.items.start[i]
               : 0;
}

int yaml_tree_entries(struct yaml_tree *t, int map)
{
    const yaml_node_t *n = node_of(t, map, YAML_MAPPING_NODE);

    return n ? (int)(n->data.mapping.pairs.top - n->data.mapping.pairs.start) : 0;
}

static yaml_node_pair_t *pair_at(struct yaml_tree *t, int map, int i)
{
    return i < yaml_tree_entries(t, map)
               ? &node_of(t, map, YAML_MAPPING_NODE)->data.mapping.pairs.start[i]
               : NULL;
}

int yaml_tree_key(struct yaml_tree *t, int map, int i)
{
    const yaml_node_pair_t *p = pair_at(t, map, i);

    return p ? p->key : 0;
}

int yaml_tree_entry(struct yaml_tree *t, int map, int i)
{
    const yaml_node_pair_t *p = pair_at(t, map, i);

    return p ? p->value : 0;
}

static yaml_node_pair_t *find(struct yaml_tree *t, int map, const char *key)
{
    for (int i = yaml_tree_entries(t, map) - 1; i >= 0; i--) {
        const char *name = yaml_tree_text(t, yaml_tree_key(t, map, i));

        if (name && strcmp(name, key) == 0)
            return pair_at(t, map, i);
    }
    return NULL;
}

int yaml_tree_get(struct yaml_tree *t, int map, const char *key)
{
    const yaml_node_pair_t *p = find(t, map, key);

    return p ? p->value : 0;
}

/* ---- writing ---- */

bool yaml_tree_set(struct yaml_tree *t, int map, const char *key, const char *value)
{
    int node;

    if (!find(t, map, key))
        return true;
    node = yaml_document_add_scalar(&t->document, NULL, (const yaml_char_t *)value, -1,
                                    YAML_PLAIN_SCALAR_STYLE);
    if (node > 0)
        find(t, map, key)->value = node; /* nodes may have moved */
    return node > 0;
}

struct yaml_text {
    char *data;
    size_t n, room;
};

static int append(void *data, unsigned char *bytes, size_t n)
{
    struct yaml_text *text = data;

    if (text->n + n > text->room) {
        const size_t room = 2 * (text->n + n);
        char *grown = realloc(text->data, room);

        if (!grown)
            return 0;
        text->data = grown;
        text->room = room;
    }
    memcpy(text->data + text->n, bytes, n);
    text->n += n;
    return 1;
}

tp_status yaml_tree_write(char **text, size_t *size, struct yaml_tree *t, struct tp_err *err)
{
    yaml_emitter_t emitter;
    struct yaml_text out = { 0 };
    bool done;

    if (!t->is_open || !yaml_emitter_initialize(&emitter))
        return tp_fail(err, TP_E_NOMEM, "no memory for a text in YAML");
    yaml_emitter_set_output(&emitter, append, &out);
    yaml_emitter_set_width(&emitter, LINE_WIDTH);
    t->document.start_implicit = t->document.end_implicit = 1;
    done = yaml_emitter_open(&emitter) && yaml_emitter_dump(&emitter, &t->document) &&
           yaml_emitter_close(&emitter);
    t->is_open = false; /* the emitter has freed it, also after a failure */
    yaml_emitter_delete(&emitter);
    if (!done) {
        free(out.data);
        return tp_fail(err, TP_E_NOMEM, "no memory for a text in YAML");
    }
    *text = out.data;
    *size = out.n;
    return TP_OK;
}
