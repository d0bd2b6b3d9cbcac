/* reshard/formats/foreign_adapter.c - see reshard/formats/foreign_adapter.h. */
#include "reshard/formats/foreign_adapter.h"

#include <stdbool.h>
#include <string.h>

#include "storage/object.h"

#define MERGE                                                                       \
    "merge it into its base model with merge_and_unload() of peft, save that with " \
    "save_pretrained(), and name that folder"

/* The first of these files in a folder; NULL: it has none. */
static const char *first_of(const char *const names[], const char *path)
{
    while (*names && !object_is_in(path, *names))
        names++;
    return *names;
}

tp_status foreign_adapter_check(const char *path, struct tp_err *err)
{
    static const char *const adapters[] = { "adapter_model.safetensors", "adapter_config.json",
                                            "adapter_model.bin", NULL };
    static const char *const models[] = { "model.safetensors", "model.safetensors.index.json",
                                          "pytorch_model.bin", "pytorch_model.bin.index.json",
                                          NULL };
    static const char *const optimizers[] = { "optimizer.pt", "optimizer.bin", NULL };
    const char *adapter = first_of(adapters, path), *model, *optimizer;

    if (!adapter)
        return TP_OK;
    model = first_of(models, path);
    if (model)
        return tp_fail(
            err, TP_E_USAGE,
            "%s: has an adapter of PEFT (%s) beside %s, whose weights are without it; " MERGE
            "; if they have it already, move the adapter's files away",
            path, adapter, model);
    optimizer = first_of(optimizers, path);
    return tp_fail(err, TP_E_USAGE, "%s: is an adapter of PEFT (%s) and no model; " MERGE "%s%s%s",
                   path, adapter, optimizer ? "; " : "", optimizer ? optimizer : "",
                   optimizer ? " has the state of the adapter's weights alone" : "");
}

/* Whether a name is one of peft's modules. */
static bool is_of_adapter(const char *name)
{
    return strncmp(name, "base_model.model.", strlen("base_model.model.")) == 0 ||
           strstr(name, ".base_layer.") || strstr(name, ".lora_");
}

tp_status foreign_adapter_check_name(const char *path, const char *name, struct tp_err *err)
{
    if (!is_of_adapter(name))
        return TP_OK;
    return tp_fail(
        err, TP_E_USAGE,
        "%s: its tensors are those of a model with an adapter of PEFT around it (%s); " MERGE, path,
        name);
}
