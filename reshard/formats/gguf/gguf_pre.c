/* reshard/formats/gguf/gguf_pre.c - see reshard/formats/gguf/gguf_pre.h. */
#include "reshard/formats/gguf/gguf_pre.h"

#include <string.h>

/* The expressions of tokenizers, as tokenizer.json has them, and llama.cpp's names. */
#define WORDS(numbers)                                                    \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *regex, *name, *merging; /* the name when words that are tokens are merged too */
} rules[] = {
    { WORDS("\\p{N}{1,3}"), "llama-bpe", "dbrx" },
    { WORDS("\\p{N}"), "qwen2", "qwen2" },
    { "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
      "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
      "tekken", "tekken" },
};

/* What the steps of a pre-tokenizer are. */
struct pre_steps {
    bool bytes, usual, digits, other;
    const char *regex;
};

static bool is_type(json_t *step, const char *type)
{
    const char *found = json_string_value(json_object_get(step, "type"));

    return found && strcmp(found, type) == 0;
}

static void add_step(struct pre_steps *s, json_t *step)
{
    if (is_type(step, "ByteLevel")) {
        s->bytes = true;
        s->usual = !json_is_false(json_object_get(step, "use_regex"));
    } else if (is_type(step, "Split") && !s->regex) {
        s->regex = json_string_value(json_object_get(json_object_get(step, "pattern"), "Regex"));
        s->other |= !s->regex;
    } else if (is_type(step, "Digits")) {
        s->digits = json_is_true(json_object_get(step, "individual_digits"));
        s->other |= !s->digits;
    } else {
        s->other = true;
    }
}

struct gguf_pre gguf_pre_find(json_t *pre_tokenizer, bool ignore_merges)
{
    struct pre_steps s = { 0 };
    struct gguf_pre out = { 0 };
    json_t *list = json_object_get(pre_tokenizer, "pretokenizers"), *step;
    size_t i;

    if (is_type(pre_tokenizer, "Sequence"))
        json_array_foreach(list, i, step) add_step(&s, step);
    else if (pre_tokenizer && !json_is_null(pre_tokenizer))
        add_step(&s, pre_tokenizer);
    out.bytes = s.bytes;
    out.regex = s.regex;
    if (s.bytes && !s.other && !s.regex && s.usual)
        out.name = s.digits ? "starcoder" : "gpt-2";
    for (i = 0; i < sizeof rules / sizeof *rules && s.bytes && !s.other && s.regex; i++)
        if (!s.usual && !s.digits && strcmp(s.regex, rules[i].regex) == 0)
            out.name = ignore_merges ? rules[i].name : rules[i].merging;
    return out;
}

/* A step, or a step of a sequence, that puts a space before a text. */
static bool puts_space(json_t *step)
{
    const char *scheme = json_string_value(json_object_get(step, "prepend_scheme"));

    if (is_type(step, "Prepend"))
        return true;
    if (!is_type(step, "Metaspace"))
        return false;
    return scheme ? strcmp(scheme, "never") != 0
                  : !json_is_false(json_object_get(step, "add_prefix_space"));
}

static bool any_puts_space(json_t *steps, const char *list)
{
    json_t *step;
    size_t i;

    json_array_foreach(json_object_get(steps, list), i, step) if (puts_space(step)) return true;
    return puts_space(steps);
}

bool gguf_pre_has_space_prefix(json_t *normalizer, json_t *pre_tokenizer)
{
    return any_puts_space(normalizer, "normalizers") ||
           any_puts_space(pre_tokenizer, "pretokenizers");
}

const char *gguf_pre_first_token(json_t *post_processor)
{
    json_t *step, *single;
    size_t i;

    json_array_foreach(json_object_get(post_processor, "processors"), i, step)
    {
        const char *found = gguf_pre_first_token(step);

        if (found)
            return found;
    }
    single = json_array_get(json_object_get(post_processor, "single"), 0);
    return json_string_value(json_object_get(json_object_get(single, "SpecialToken"), "id"));
}
