/*
 * core/text.h - text from other programs (a log's last line, a path), made safe for JSON and
 * terminals.
 */
#ifndef CORE_TEXT_H
#define CORE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Length in bytes of the UTF-8 sequence at the start of `text`, which ends with a 0 byte. 0: it is
 * not one, or it is an overlong form or a surrogate. */
int text_utf8_length(const char *text);

enum { TEXT_UNIT_MAX = 5 };

/* Write the character at the start of `text` into unit, as a terminal may show it: a control
 * character as \n, \r, \t, or \x1b for each of its bytes, and a byte that is not UTF-8 likewise.
 * Returns its length in `text`; 0: the text ends here, or in the middle of a sequence. */
int text_escape_unit(char unit[TEXT_UNIT_MAX], const char *text);

/* `text` with every character so, cut to `size` bytes between two characters. Returns out. A
 * backslash stays as it is, so the result is for people, and is not parsed again. */
char *text_escape(char *out, size_t size, const char *text);

enum { TEXT_WORD_MAX = 512 };

/* `text`, such as a path, as a word of a command line that people copy into a shell: in quotes
 * where the shell would change it, and with ./ before a dash, which would begin an option. Control
 * characters and bytes that are not UTF-8 are written as in $'\n'. "..." when it does not fit: a
 * part of it would be another path. Returns word. */
char *text_shell_word(char word[TEXT_WORD_MAX], const char *text);

/* In place: control characters and bytes that are not UTF-8 become '?', so that escape sequences
 * have no effect. A sequence that the end of the text cuts off is removed. Returns text. */
char *text_clean(char *text);

/* Copy the last line of `text` that has anything besides blanks and the characters in `ignored`,
 * cut to `size` bytes; "" when there is none. Lines end with \n or \r. Returns line. */
char *text_last_line(char *line, size_t size, const char *text, const char *ignored);

/* What follows the last slash of a path; without one, the path. */
const char *text_base_name(const char *path);

/* Bytes of a path without the slashes at its end; "/" keeps its own. */
size_t text_path_length(const char *path);

/* Whether `text` ends with `end` and has more than that. */
bool text_ends_with(const char *text, const char *end);

/* Whether `text` is one of these names, of which the last is NULL. */
bool text_is_one_of(const char *text, const char *const *names);

/* The fewest digits that read back as v: "0.1", "1e-05", "8". Returns text. */
enum { TEXT_REAL_MAX = 32 };
char *text_real(char text[TEXT_REAL_MAX], double v);

/* For qsort and bsearch of an array of texts: the order of strcmp. */
int text_compare(const void *a, const void *b);

#endif
