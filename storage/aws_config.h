/*
 * storage/aws_config.h - credentials, region and endpoint for S3, found as the AWS tools find them.
 *
 * The environment comes first, then the profile in ~/.aws/credentials, then ~/.aws/config. Roles,
 * single sign-on, and the credentials that a virtual machine or a container offers are not read.
 */
#ifndef STORAGE_AWS_CONFIG_H
#define STORAGE_AWS_CONFIG_H

#include <stdbool.h>

#include "core/err.h"
#include "storage/sigv4.h"

/* The values of environment variables; NULL or "": not set. Borrowed. */
struct aws_config_environment {
    const char *access_key;       /* AWS_ACCESS_KEY_ID */
    const char *secret_key;       /* AWS_SECRET_ACCESS_KEY */
    const char *token;            /* AWS_SESSION_TOKEN */
    const char *region;           /* AWS_REGION, AWS_DEFAULT_REGION */
    const char *endpoint;         /* AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL */
    const char *profile;          /* AWS_PROFILE */
    const char *credentials_file; /* AWS_SHARED_CREDENTIALS_FILE */
    const char *config_file;      /* AWS_CONFIG_FILE */
    const char *home;             /* HOME */
};

struct aws_config {
    struct sigv4_credentials credentials; /* with the region, by default us-east-1 */
    char endpoint[512];                   /* "https://host:port"; "": Amazon's */
    bool from_files;                      /* the keys, so that they may be others later */
};

/* TP_E_USAGE: there are no credentials, one half of a pair is missing, the profile does not exist,
 * or a value is malformed. Messages name variables and files, never values. */
tp_status aws_config_find(struct aws_config *out, const struct aws_config_environment *env,
                          struct tp_err *err);

/* Whether two configurations have the same keys and the same token. */
bool aws_config_has_keys_of(const struct aws_config *a, const struct aws_config *b);

#endif
