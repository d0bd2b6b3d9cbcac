/*
 * reshard/formats/megatron/yaml_tree.h - a small file in YAML: its scalars, lists and mappings,
 * found by key, and the same file with other scalars. Nothing in it is constructed or executed.
 *
 * Nodes are numbers; 0 is no node, and every call accepts it.
 */
#ifndef RESHARD_FORMATS_MEGATRON_YAML_TREE_H
#define RESHARD_FORMATS_MEGATRON_YAML_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <yaml.h>

#include "core/err.h"

/* Larger files are refused. Nodes need up to YAML_TREE_MEMORY times the bytes of the text. */
enum { YAML_TREE_BYTES_MAX = 1 << 20, YAML_TREE_MEMORY = 128 };

struct yaml_tree {
    yaml_document_t document;
    bool is_open;
};

/* Parse a text whose root is a mapping. TP_E_CORRUPT: it is none; the message has `path` and the
 * line. Free it also after a failure. */
tp_status yaml_tree_parse(struct yaml_tree *out, const char *text, size_t size, const char *path,
                          struct tp_err *err);
void yaml_tree_free(struct yaml_tree *t);

int yaml_tree_root(struct yaml_tree *t);

/* The value of a key of a mapping; of a repeated key the last one, as in PyYAML. */
int yaml_tree_get(struct yaml_tree *t, int map, const char *key);

/* The text of a scalar; NULL: the node is none, is null, or has a zero byte. */
const char *yaml_tree_text(struct yaml_tree *t, int node);

/* Whether a scalar is written without quotes, so it may be a number or a boolean. */
bool yaml_tree_is_plain(struct yaml_tree *t, int node);

/* The number of items of a list, and one of them. */
int yaml_tree_count(struct yaml_tree *t, int list);
int yaml_tree_item(struct yaml_tree *t, int list, int i);

/* The number of entries of a mapping, and key and value of one. */
int yaml_tree_entries(struct yaml_tree *t, int map);
int yaml_tree_key(struct yaml_tree *t, int map, int i);
int yaml_tree_entry(struct yaml_tree *t, int map, int i);

/* Give a key that a mapping has another value, a scalar without quotes. What the mapping does not
 * have stays absent. False: memory is out. */
bool yaml_tree_set(struct yaml_tree *t, int map, const char *key, const char *value);

/* The text of the tree, freed by the caller; the tree is empty afterwards. TP_E_NOMEM. */
tp_status yaml_tree_write(char **text, size_t *size, struct yaml_tree *t, struct tp_err *err);

#endif
