/* storage/aws_config.c - see storage/aws_config.h. */
#include "storage/aws_config.h"

#include <ctype.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/arena.h"
#include "core/file.h"

enum { FILE_BYTES_MAX = 1 << 20 };

static const char default_region[] = "us-east-1";

static bool is_set(const char *value)
{
    return value && value[0];
}

/* Copy a value; header values must not contain control characters or blanks, and none of these has
 * any. */
static tp_status keep(char *out, size_t size, const char *value, const char *name,
                      struct tp_err *err)
{
    for (const char *c = value; *c; c++)
        if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 127)
            return tp_fail(err, TP_E_USAGE, "%s has a blank or a character that is not ASCII",
                           name);
    if (strlen(value) >= size)
        return tp_fail(err, TP_E_USAGE, "%s has more than %zu characters", name, size - 1);
    memcpy(out, value, strlen(value) + 1);
    return TP_OK;
}

/* ---- profiles ---- */

/* A file in which sections "[name]" have lines "key = value". */
struct aws_profile_file {
    char path[PATH_MAX];
    const char *text;    /* "": there is no such file */
    const char *section; /* its first line after "[name]"; NULL: it has no such section */
};

static const char *next_line(const char *line)
{
    line += strcspn(line, "\n");
    return *line ? line + 1 : line;
}

/* Copy the head of a section, n bytes, without the quotes around words. */
static void unquote(char *out, size_t size, const char *head, size_t n)
{
    size_t used = 0;
    char quote = 0;

    for (size_t i = 0; i < n && used + 1 < size; i++)
        if (quote ? head[i] == quote : head[i] == '"' || head[i] == '\'')
            quote = quote ? 0 : head[i];
        else
            out[used++] = head[i];
    out[used] = 0;
}

/* Whether the head of a section, n bytes, is a profile's. In the config file it is "profile NAME",
 * with quotes around a name with blanks, and for the default one also its name alone. */
static bool is_head_of(const char *head, size_t n, const char *profile, bool in_config)
{
    static const char word[] = "profile";
    const size_t skip = sizeof word - 1;
    char name[256];

    if (in_config && n > skip && strncmp(head, word, skip) == 0 &&
        (head[skip] == ' ' || head[skip] == '\t')) {
        const size_t blanks = strspn(head + skip, " \t");

        unquote(name, sizeof name, head + skip + blanks, n - skip - blanks);
        return strcmp(name, profile) == 0;
    }
    return (!in_config || strcmp(profile, "default") == 0) && n == strlen(profile) &&
           strncmp(head, profile, n) == 0;
}

static const char *find_section(const char *text, const char *profile, bool in_config)
{
    for (; *text; text = next_line(text)) {
        const char *begin = text + strspn(text, " \t");
        size_t n;

        if (*begin != '[')
            continue;
        begin += 1 + strspn(begin + 1, " \t");
        n = strcspn(begin, "]\n");
        while (n > 0 && (begin[n - 1] == ' ' || begin[n - 1] == '\t'))
            n--;
        if (is_head_of(begin, n, profile, in_config))
            return next_line(text);
    }
    return NULL;
}

/* Read the file that a variable names, or HOME/.aws/NAME, and find the profile in it. */
static tp_status open_profile(struct aws_profile_file *f, const char *given, const char *home,
                              const char *name, const char *profile, struct arena *arena,
                              struct tp_err *err)
{
    char *text = NULL;
    size_t size = 0;
    tp_status st;

    f->text = "";
    f->section = NULL;
    if (!is_set(given) && !is_set(home))
        return TP_OK;
    if (snprintf(f->path, sizeof f->path, "%s%s%s", is_set(given) ? given : home,
                 is_set(given) ? "" : "/.aws/", is_set(given) ? "" : name) >= (int)sizeof f->path)
        return tp_fail(err, TP_E_USAGE, "the path of the AWS %s file is too long", name);
    st = file_read_all(&text, &size, f->path, FILE_BYTES_MAX, arena, err);
    if (st == TP_E_NOTFOUND &&
        is_set(given)) /* or callers would take it for a missing checkpoint */
        return tp_fail(err, TP_E_USAGE, "%.400s: there is no such AWS %s file", given, name);
    if (st == TP_E_NOTFOUND)
        return TP_OK;
    if (st)
        return st;
    f->text = text;
    f->section = find_section(text, profile, strcmp(name, "config") == 0);
    return TP_OK;
}

/* The value in this line of a section, if the line is of this key; its length without the blanks
 * around it. NULL: it is of another key. Names of keys have no case. */
static const char *value_of(const char *line, const char *key, size_t *length)
{
    const size_t n = strlen(key);
    const char *at = line + n;

    if (strncasecmp(line, key, n) != 0)
        return NULL;
    at += strspn(at, " \t");
    if (*at != '=' && *at != ':')
        return NULL;
    at += 1 + strspn(at + 1, " \t");
    *length = strcspn(at, "\r\n");
    while (*length > 0 && (at[*length - 1] == ' ' || at[*length - 1] == '\t'))
        --*length;
    return at;
}

/* The value of a key of the profile, or NULL. All lines of a section may be indented; one that is
 * indented more than the key before it belongs to that key's value. */
static const char *find_value(const char *section, const char *key, size_t *length)
{
    size_t key_indent = SIZE_MAX;

    for (const char *line = section; line && *line; line = next_line(line)) {
        const size_t indent = strspn(line, " \t");
        const char *value;

        if (!line[indent] || strchr("\r\n#;", line[indent]) || indent > key_indent)
            continue;
        if (line[indent] == '[')
            return NULL;
        if ((value = value_of(line + indent, key, length)))
            return value;
        key_indent = indent;
    }
    return NULL;
}

/* Copy the value of a key of the profile, when it has that key and out is still empty. */
static tp_status from_profile(char *out, size_t size, const struct aws_profile_file *f,
                              const char *key, struct tp_err *err)
{
    char value[sizeof((struct sigv4_credentials *)0)->token], name[PATH_MAX + 64];
    size_t length;
    const char *at = out[0] ? NULL : find_value(f->section, key, &length);

    if (!at)
        return TP_OK;
    snprintf(name, sizeof name, "%s: %s", f->path, key);
    if (length >= sizeof value)
        return tp_fail(err, TP_E_USAGE, "%s is too long", name);
    if (*at == '"' || *at == '\'')
        return tp_fail(err, TP_E_USAGE,
                       "%s is in quotes, and the AWS tools take quotes for a part of the value; "
                       "remove them",
                       name);
    snprintf(value, sizeof value, "%.*s", (int)length, at);
    return keep(out, size, value, name, err);
}

/* ---- everything ---- */

static tp_status from_environment(struct aws_config *c, const struct aws_config_environment *env,
                                  struct tp_err *err)
{
    struct sigv4_credentials *k = &c->credentials;
    tp_status st = TP_OK;

    if (is_set(env->access_key) != is_set(env->secret_key))
        return tp_fail(err, TP_E_USAGE, "%s is set, but %s is not",
                       is_set(env->access_key) ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
                       is_set(env->access_key) ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
    if (is_set(env->access_key)) {
        TP_TRY(
            keep(k->access_key, sizeof k->access_key, env->access_key, "AWS_ACCESS_KEY_ID", err));
        TP_TRY(keep(k->secret_key, sizeof k->secret_key, env->secret_key, "AWS_SECRET_ACCESS_KEY",
                    err));
        if (is_set(env->token))
            TP_TRY(keep(k->token, sizeof k->token, env->token, "AWS_SESSION_TOKEN", err));
    }
    if (is_set(env->region))
        TP_TRY(keep(k->region, sizeof k->region, env->region, "AWS_REGION", err));
    if (is_set(env->endpoint))
        TP_TRY(keep(c->endpoint, sizeof c->endpoint, env->endpoint, "AWS_ENDPOINT_URL", err));
done:
    return st;
}

static tp_status keys_of(struct sigv4_credentials *k, const struct aws_profile_file *f,
                         struct tp_err *err)
{
    struct sigv4_credentials found = { .access_key = "" };
    tp_status st;

    if (k->access_key[0]) /* never mix the keys of two places */
        return TP_OK;
    TP_TRY(from_profile(found.access_key, sizeof found.access_key, f, "aws_access_key_id", err));
    TP_TRY(
        from_profile(found.secret_key, sizeof found.secret_key, f, "aws_secret_access_key", err));
    TP_TRY(from_profile(found.token, sizeof found.token, f, "aws_session_token", err));
    if (!found.access_key[0] != !found.secret_key[0])
        TP_TRY(tp_fail(err, TP_E_USAGE, "%s: the profile has %s, but no %s", f->path,
                       found.access_key[0] ? "aws_access_key_id" : "aws_secret_access_key",
                       found.access_key[0] ? "aws_secret_access_key" : "aws_access_key_id"));
    if (found.access_key[0]) {
        memcpy(found.region, k->region, sizeof found.region);
        *k = found;
    }
done:
    explicit_bzero(&found, sizeof found);
    return st;
}

/* An endpoint is a scheme and a host, and nothing that may be a secret. */
static tp_status check_endpoint(struct aws_config *c, struct tp_err *err)
{
    size_t n = strlen(c->endpoint);
    const char *host = strstr(c->endpoint, "://");

    while (n > 0 && c->endpoint[n - 1] == '/')
        c->endpoint[--n] = 0;
    if (n == 0)
        return TP_OK;
    if ((strncmp(c->endpoint, "http://", 7) != 0 && strncmp(c->endpoint, "https://", 8) != 0) ||
        !host || !host[3] || strpbrk(host + 3, "/?#@\"<>\\"))
        return tp_fail(
            err, TP_E_USAGE,
            "the endpoint for S3 (AWS_ENDPOINT_URL, or endpoint_url of the profile) must "
            "be http:// or https:// and a host, without user, path and query");
    return TP_OK;
}

/* Without an endpoint the region is a part of the host's name, and with a '/' in it all that
 * follows is not: the request would go to another host. */
static tp_status check_region(const struct aws_config *c, struct tp_err *err)
{
    const char *region = c->credentials.region;

    for (const char *at = region; *at; at++)
        if (!isalnum((unsigned char)*at) && *at != '-' && !c->endpoint[0])
            return tp_fail(err, TP_E_USAGE,
                           "the region for S3 (AWS_REGION, or region of the profile) is '%s', "
                           "expected letters, digits and '-', such as us-east-1",
                           region);
    return TP_OK;
}

/* What the environment does not say comes from the profile's files. */
static tp_status from_files(struct aws_config *c, const struct aws_config_environment *env,
                            struct arena *arena, struct tp_err *err)
{
    const char *profile = is_set(env->profile) ? env->profile : "default";
    struct aws_profile_file keys, config;
    tp_status st;

    TP_TRY(
        open_profile(&keys, env->credentials_file, env->home, "credentials", profile, arena, err));
    TP_TRY(open_profile(&config, env->config_file, env->home, "config", profile, arena, err));
    if (is_set(env->profile) && !keys.section && !config.section)
        TP_TRY(tp_fail(err, TP_E_USAGE,
                       "AWS_PROFILE is '%.200s', but neither the AWS credentials file nor the AWS "
                       "config file has that profile",
                       profile));
    TP_TRY(keys_of(&c->credentials, &keys, err));
    TP_TRY(keys_of(&c->credentials, &config, err));
    for (int i = 0; i < 2; i++) {
        const struct aws_profile_file *f = i == 0 ? &keys : &config;

        TP_TRY(from_profile(c->credentials.region, sizeof c->credentials.region, f, "region", err));
        TP_TRY(from_profile(c->endpoint, sizeof c->endpoint, f, "endpoint_url", err));
    }
done:
    return st;
}

tp_status aws_config_find(struct aws_config *out, const struct aws_config_environment *env,
                          struct tp_err *err)
{
    struct aws_config c = { .endpoint = "" };
    struct arena arena = { 0 };
    tp_status st;

    TP_TRY(from_environment(&c, env, err));
    c.from_files = !c.credentials.access_key[0];
    TP_TRY(from_files(&c, env, &arena, err));
    if (!c.credentials.access_key[0])
        TP_TRY(tp_fail(err, TP_E_USAGE,
                       "there are no credentials for S3: set AWS_ACCESS_KEY_ID and "
                       "AWS_SECRET_ACCESS_KEY, or write them to ~/.aws/credentials"));
    if (!c.credentials.region[0])
        memcpy(c.credentials.region, default_region, sizeof default_region);
    TP_TRY(check_endpoint(&c, err));
    TP_TRY(check_region(&c, err));
    *out = c;
done:
    explicit_bzero(&c, sizeof c);
    arena_free(&arena);
    return st;
}

bool aws_config_has_keys_of(const struct aws_config *a, const struct aws_config *b)
{
    return strcmp(a->credentials.access_key, b->credentials.access_key) == 0 &&
           strcmp(a->credentials.secret_key, b->credentials.secret_key) == 0 &&
           strcmp(a->credentials.token, b->credentials.token) == 0;
}
