/* tests/unit/ckpt_vfd.c - libhdf5 writes through our driver. A failed write is reported and does
 * not crash libhdf5. */
#include "ckpt/vfd.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/temp_dir.h"

enum { N = 1000 };

TestSuite(vfd, .init = temp_dir_make, .fini = temp_dir_remove);

/* Write the dataset "x" of N numbers. Returns whether libhdf5 reported success throughout. */
static bool write_dataset(struct vfd *vfd)
{
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS), driver = -1, file, space, data;
    const hsize_t n = N;
    int values[N];
    bool ok;

    for (int i = 0; i < N; i++)
        values[i] = i * i;
    ok = vfd_select(fapl, vfd, &driver) >= 0;
    file = H5Fcreate(vfd->path, H5F_ACC_TRUNC, H5P_DEFAULT, fapl);
    space = H5Screate_simple(1, &n, NULL);
    data = H5Dcreate2(file, "x", H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    ok &= file >= 0 && data >= 0;
    ok &= H5Dwrite(data, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0;
    H5Dclose(data);
    H5Sclose(space);
    ok &= H5Fclose(file) >= 0;
    H5Pclose(fapl);
    H5FDunregister(driver);
    return ok;
}

Test(vfd, the_usual_driver_reads_a_file_that_it_wrote)
{
    const char *path = temp_path("x.h5");
    struct vfd vfd = { .fd = open(path, O_RDWR | O_CREAT, 0666), .path = path, .blank = true };
    hid_t file, data;
    int values[N];

    cr_assert_geq(vfd.fd, 0);
    cr_assert(write_dataset(&vfd));
    cr_assert_eq(vfd.first.status, TP_OK, "%s", vfd.first.msg);
    cr_assert_eq(ftruncate(vfd.fd, vfd.end), 0);
    cr_assert_eq(close(vfd.fd), 0, "the descriptor stays open until here");
    file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    data = H5Dopen2(file, "x", H5P_DEFAULT);
    cr_assert(file >= 0 && data >= 0);
    cr_assert_geq(H5Dread(data, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
    for (int i = 0; i < N; i++)
        cr_assert_eq(values[i], i * i);
    H5Dclose(data);
    H5Fclose(file);
}

Test(vfd, the_content_of_a_blank_file_is_ignored)
{
    char noise[3000], before[3000];
    const char *path = temp_path("x.h5");
    struct vfd vfd = { .path = path, .blank = true };

    memset(noise, 0x5a, sizeof noise);
    temp_write("x.h5", noise, sizeof noise);
    vfd.fd = open(path, O_RDWR);
    cr_assert(write_dataset(&vfd));
    cr_assert_eq(vfd.first.status, TP_OK, "%s", vfd.first.msg);
    cr_assert_eq(pread(vfd.fd, before, 8, 0), 8);
    cr_assert_eq(memcmp(before, "\x89HDF\r\n\x1a\n", 8), 0);
    close(vfd.fd);
}

Test(vfd, the_first_error_is_kept_and_libhdf5_continues)
{
    const char *path = temp_path("x.h5");
    struct vfd vfd = { .path = path, .blank = true };

    temp_write("x.h5", "", 0);
    vfd.fd = open(path, O_RDONLY); /* every write fails */
    cr_assert(write_dataset(&vfd), "libhdf5 must not notice");
    cr_assert_eq(vfd.first.status, TP_E_IO);
    cr_assert(strstr(vfd.first.msg, path), "%s", vfd.first.msg);
    close(vfd.fd);
}
