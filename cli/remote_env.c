/* cli/remote_env.c - see cli/remote_env.h. */
#include "cli/remote_env.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "cli/report.h"
#include "storage/remote.h"

/* The first of two variables that is set. */
static const char *first_of(const char *name, const char *other)
{
    const char *value = getenv(name);

    return value && value[0] ? value : getenv(other);
}

static tp_status number(double *out, const char *name, double least, double most,
                        struct tp_err *err)
{
    const char *text = getenv(name);
    char *end = NULL;

    if (!text || !text[0])
        return TP_OK;
    *out = strtod(text, &end);
    if (end == text || *end || !(*out >= least && *out <= most))
        return tp_fail(err, TP_E_USAGE, "%s is '%.40s', expected a number from %g to %g", name,
                       text, least, most);
    return TP_OK;
}

static void say(const char *sentence)
{
    report_note(program_invocation_short_name, "%s", sentence);
}

tp_status remote_env_read(struct tp_err *err)
{
    struct remote_settings s = {
        .aws = { .access_key = getenv("AWS_ACCESS_KEY_ID"),
                 .secret_key = getenv("AWS_SECRET_ACCESS_KEY"),
                 .token = getenv("AWS_SESSION_TOKEN"),
                 .region = first_of("AWS_REGION", "AWS_DEFAULT_REGION"),
                 .endpoint = first_of("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
                 .profile = getenv("AWS_PROFILE"),
                 .credentials_file = getenv("AWS_SHARED_CREDENTIALS_FILE"),
                 .config_file = getenv("AWS_CONFIG_FILE"),
                 .home = getenv("HOME") },
        .ca_file = first_of("AWS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        .notify = say,
    };
    double connections = 0;
    tp_status st;

    TP_TRY(number(&s.timeout_s, "TP_REMOTE_TIMEOUT", 1, 86400, err));
    TP_TRY(number(&connections, "TP_REMOTE_CONNECTIONS", 1, REMOTE_CONNECTIONS_MAX, err));
    s.connections = (int)connections;
    remote_configure(&s);
done:
    return st;
}
