/* tests/unit/storage_aws_config.c - credentials: where they come from, and what is refused. */
#include "storage/aws_config.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/temp_dir.h"

TestSuite(aws_config, .init = temp_dir_make, .fini = temp_dir_remove);

static struct aws_config config;
static struct tp_err err;

static void write_text(const char *name, const char *text)
{
    unlink(temp_path(name));
    temp_write(name, text, strlen(text));
}

static void check_refused(const struct aws_config_environment *env, const char *says)
{
    cr_expect_eq(aws_config_find(&config, env, &err), TP_E_USAGE, "%s", says);
    cr_expect_not_null(strstr(err.msg, says), "%s", err.msg);
    cr_expect_null(strstr(err.msg, "hidden"), "%s", err.msg);
}

Test(aws_config, the_environment_comes_first)
{
    struct aws_config_environment env = { .access_key = "A",
                                          .secret_key = "B",
                                          .token = "C",
                                          .region = "eu-x",
                                          .endpoint = "http://host:9000/",
                                          .credentials_file = temp_path("keys") };
    struct aws_config before;

    write_text("keys", "[default]\naws_access_key_id=D\naws_secret_access_key=E\n");
    cr_assert_eq(aws_config_find(&config, &env, &err), TP_OK, "%s", err.msg);
    cr_expect_str_eq(config.credentials.access_key, "A");
    cr_expect_str_eq(config.credentials.secret_key, "B");
    cr_expect_str_eq(config.credentials.token, "C");
    cr_expect_str_eq(config.credentials.region, "eu-x");
    cr_expect_str_eq(config.endpoint, "http://host:9000");
    cr_expect_not(config.from_files);
    before = config;
    cr_expect(aws_config_has_keys_of(&config, &before));
    env.access_key = env.secret_key = "";
    cr_assert_eq(aws_config_find(&config, &env, &err), TP_OK, "%s", err.msg);
    cr_expect(config.from_files);
    cr_expect_not(aws_config_has_keys_of(&config, &before));
    cr_expect_str_eq(config.credentials.access_key, "D");
    cr_expect_str_eq(config.credentials.token, "", "a token belongs to its keys");
}

Test(aws_config, profiles_are_read_from_two_files)
{
    struct aws_config_environment env = { .profile = "job",
                                          .credentials_file = temp_path("keys"),
                                          .config_file = temp_path("config") };

    write_text("keys",
               "# comment\n[default]\naws_access_key_id = X\n[ job ]\r\naws_access_key_id =  A \r\n"
               "aws_secret_access_key=B=/+\naws_session_token\t= T\n[next]\nregion = no\n");
    write_text("config", "[profile job]\nregion = ap-1\ns3 =\n  endpoint_url = no\n"
                         "endpoint_url = https://h\n");
    cr_assert_eq(aws_config_find(&config, &env, &err), TP_OK, "%s", err.msg);
    cr_expect_str_eq(config.credentials.access_key, "A");
    cr_expect_str_eq(config.credentials.secret_key, "B=/+");
    cr_expect_str_eq(config.credentials.token, "T");
    cr_expect_str_eq(config.credentials.region, "ap-1");
    cr_expect_str_eq(config.endpoint, "https://h");
    env.profile = "none";
    check_refused(&env, "'none'");
    env.profile = "";
    check_refused(&env, "no aws_secret_access_key");
}

/* Check that the config file gives this profile this region; NULL: it has no such profile. */
static void check_region(const char *text, const char *profile, const char *region)
{
    struct aws_config_environment env = {
        .access_key = "A", .secret_key = "B", .profile = profile, .config_file = temp_path("config")
    };

    write_text("config", text);
    if (!region) {
        check_refused(&env, "has that profile");
        return;
    }
    cr_assert_eq(aws_config_find(&config, &env, &err), TP_OK, "%s: %s", text, err.msg);
    cr_expect_str_eq(config.credentials.region, region, "%s", text);
}

/* As botocore reads them; it does not know the last one of "my team", which has only one reading.
 */
Test(aws_config, a_profile_of_the_config_file_may_be_in_quotes)
{
    check_region("[profile \"my team\"]\nregion = a\n", "my team", "a");
    check_region("[profile  'my team' ]\nregion = a\n", "my team", "a");
    check_region("[profile\tjob]\nregion = a\n", "job", "a");
    check_region("[profile \"job\"]\nregion = a\n", "job", "a");
    check_region("[profile my team]\nregion = a\n", "my team", "a");
    check_region("[profile default]\nregion = a\n", "default", "a");
    check_region("[default]\nregion = a\n", "default", "a");
    check_region("[job]\nregion = a\n", "job", NULL);
    check_region("[profile \"jobs\"]\nregion = a\n", "job", NULL);
    check_region("[profile \"job]\nregion = a\n", "jo", NULL);
}

/* As botocore's parser does. */
Test(aws_config, lines_may_be_indented_and_names_of_keys_have_no_case)
{
    struct aws_config_environment env = { .credentials_file = temp_path("keys"),
                                          .config_file = temp_path("config") };

    write_text("keys", "[default]\n  aws_access_key_id = A\n\n  # comment\n"
                       "  AWS_SECRET_ACCESS_KEY: B\n  [next]\n  aws_session_token = no\n");
    write_text("config", "[default]\n  s3 =\n    region = no\n\n    [x]\n  Region = ap-1\n");
    cr_assert_eq(aws_config_find(&config, &env, &err), TP_OK, "%s", err.msg);
    cr_expect_str_eq(config.credentials.access_key, "A");
    cr_expect_str_eq(config.credentials.secret_key, "B");
    cr_expect_str_eq(config.credentials.token, "");
    cr_expect_str_eq(config.credentials.region, "ap-1");
    write_text("keys", "[default]\naws_access_key_id = A\naws_secret_access_key = B\n"
                       "region = eu-1\nendpoint_url = http://h\n");
    cr_assert_eq(aws_config_find(&config, &env, &err), TP_OK, "%s", err.msg);
    cr_expect_str_eq(config.credentials.region, "eu-1", "the file of credentials comes first");
    cr_expect_str_eq(config.endpoint, "http://h");
}

Test(aws_config, quotes_around_a_value_are_named)
{
    struct aws_config_environment env = { .credentials_file = temp_path("keys") };

    write_text("keys", "[default]\naws_access_key_id = \"hidden\"\naws_secret_access_key = B\n");
    check_refused(&env, "keys: aws_access_key_id is in quotes");
    write_text("keys", "[default]\naws_access_key_id = A\naws_secret_access_key = 'hidden'\n");
    check_refused(&env, "keys: aws_secret_access_key is in quotes");
}

Test(aws_config, what_is_missing_or_malformed_is_named)
{
    check_refused(&(struct aws_config_environment){ .home = temp_dir }, "no credentials");
    check_refused(&(struct aws_config_environment){ .access_key = "A" },
                  "AWS_SECRET_ACCESS_KEY is not");
    check_refused(&(struct aws_config_environment){ .access_key = "A", .secret_key = "hidden\n" },
                  "AWS_SECRET_ACCESS_KEY has a blank");
    check_refused(&(struct aws_config_environment){ .access_key = "A",
                                                    .secret_key = "B",
                                                    .endpoint = "https://user:hidden@h" },
                  "without user");
    check_refused(&(struct aws_config_environment){ .access_key = "A",
                                                    .secret_key = "B",
                                                    .endpoint = "host" },
                  "http:// or https://");
    check_refused(&(struct aws_config_environment){ .access_key = "A",
                                                    .secret_key = "B",
                                                    .region = "x@other/" },
                  "expected letters, digits");
    check_refused(&(struct aws_config_environment){ .home = temp_dir, .config_file = "/absent" },
                  "/absent: there is no such AWS config file");
    cr_expect_eq(
        aws_config_find(&config,
                        &(struct aws_config_environment){ .access_key = "A", .secret_key = "B" },
                        &err),
        TP_OK);
    cr_expect_str_eq(config.credentials.region, "us-east-1");
}
