/* device/failure.c - see device/failure.h. */
#include "device/failure.h"

void device_failure_open(struct device_failure *f)
{
    pthread_mutex_init(&f->lock, NULL);
}

void device_failure_close(struct device_failure *f)
{
    pthread_mutex_destroy(&f->lock);
}

void device_failure_keep(struct device_failure *f, const struct tp_err *err)
{
    pthread_mutex_lock(&f->lock);
    if (!f->first.status)
        f->first = *err;
    atomic_store(&f->failed, true);
    pthread_mutex_unlock(&f->lock);
}

tp_status device_failure_get(struct device_failure *f, struct tp_err *err)
{
    if (!atomic_load(&f->failed))
        return TP_OK;
    pthread_mutex_lock(&f->lock);
    *err = f->first;
    pthread_mutex_unlock(&f->lock);
    return err->status;
}
