/*
 * cli/remote_env.h - the settings for remote checkpoints, from the environment.
 *
 * AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_DEFAULT_REGION,
 * AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_PROFILE, AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE,
 * AWS_CA_BUNDLE, CURL_CA_BUNDLE; TP_REMOTE_TIMEOUT (seconds), TP_REMOTE_CONNECTIONS.
 */
#ifndef CLI_REMOTE_ENV_H
#define CLI_REMOTE_ENV_H

#include "core/err.h"

/* A line about remote paths for --help. */
#define REMOTE_ENV_HELP                                                                \
    "CKPT may also be https://HOST/PATH, or s3://BUCKET/PREFIX with the endpoint and " \
    "credentials\n"                                                                    \
    "that AWS tools use (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, ~/.aws/credentials)."

/* Call this in main() before any checkpoint is opened. Nothing is read but the environment.
 * TP_E_USAGE: a TP_REMOTE_ variable is not a number in its range. */
tp_status remote_env_read(struct tp_err *err);

#endif
