#include <errno.h>
#include <fcntl.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/commctl/pki.h"

static bool fail(const char *path, const char *what)
{
    fprintf(stderr, "commctl pki: %s: %s\n", path, what);
    return false;
}

const char *pki_path(struct pki *pki, const char *name, const char *extension)
{
    snprintf(pki->path, sizeof pki->path, "%s/%s.%s", pki->folder, name, extension);
    return pki->path;
}

bool pki_make_folder(const char *folder)
{
    return mkdir(folder, 0755) == 0 || errno == EEXIST || fail(folder, strerror(errno));
}

int pki_lock(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX) < 0) {
        (void)fail(folder, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return -1;
    }
    return fd;
}

/* --- Reading --- */

static bool read_all(int fd, const char *path, size_t size, struct pki_bytes *out)
{
    out->bytes = malloc(size + 1);
    if (out->bytes == NULL) {
        return fail(path, "no memory");
    }
    while (out->size < size) {
        ssize_t got = read(fd, out->bytes + out->size, size - out->size);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            int failure = errno;
            free(out->bytes);
            return fail(path, strerror(failure));
        }
        if (got == 0) {
            break;
        }
        out->size += (size_t)got;
    }
    out->bytes[out->size] = '\0';
    return true;
}

bool pki_read(const char *path, struct pki_bytes *out)
{
    struct stat attributes;
    *out = (struct pki_bytes){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* so a pipe cannot block us */
    if (fd < 0 || fstat(fd, &attributes) < 0) {
        int failure = errno;
        if (fd >= 0) {
            close(fd);
        }
        return fail(path, strerror(failure));
    }
    bool done = false;
    if (!S_ISREG(attributes.st_mode)) {
        (void)fail(path, "not a regular file");
    } else if (attributes.st_size > (off_t)PKI_FILE_MAX_BYTES) {
        (void)fail(path, "larger than 16 MiB: not a file of certificates");
    } else {
        done = read_all(fd, path, (size_t)attributes.st_size, out);
    }
    close(fd);
    return done;
}

/* --- Writing --- */

static bool write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t put = write(fd, bytes, size);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return false;
        }
        bytes += put;
        size -= (size_t)put;
    }
    return fsync(fd) == 0;
}

static void sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd); /* some file systems do not support it */
        close(fd);
    }
}

/* Gives the new file the owner of the replaced one, so that the daemon can still read its key. */
static bool take_owner(int fd, const char *path)
{
    struct stat old;
    if (lstat(path, &old) < 0 || !S_ISREG(old.st_mode)) {
        return true;
    }
    return (old.st_uid == geteuid() && old.st_gid == getegid()) || fchown(fd, old.st_uid, old.st_gid) == 0;
}

bool pki_write(const char *path, mode_t mode, enum pki_write_mode how, const char *bytes, size_t size)
{
    char folder[PATH_MAX];
    char temporary[PATH_MAX + 32];
    const char *slash = strrchr(path, '/');
    int length = slash == NULL ? 0 : (int)(slash - path);
    snprintf(folder, sizeof folder, "%.*s", slash == NULL ? 1 : length + 1, slash == NULL ? "." : path);
    snprintf(temporary, sizeof temporary, "%s/.commctl-XXXXXX", folder);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        return fail(path, strerror(errno));
    }
    bool written =
        (how == PKI_WRITE_NEW || take_owner(fd, path)) && write_all(fd, bytes, size) && fchmod(fd, mode) == 0;
    if (written && how == PKI_WRITE_NEW) {
        written = link(temporary, path) == 0;
        int failure = errno;
        unlink(temporary);
        errno = failure;
    } else if (written) {
        written = rename(temporary, path) == 0;
    }
    int failure = errno;
    close(fd);
    if (!written) {
        unlink(temporary);
        return fail(path, strerror(failure));
    }
    sync_folder(folder);
    printf("wrote %s\n", path);
    return true;
}

/* Writes to the file what OpenSSL has written to memory. */
static bool write_memory(BIO *memory, bool filled, const char *path, mode_t mode, enum pki_write_mode how)
{
    char *bytes = NULL;
    long size = memory == NULL ? 0 : BIO_get_mem_data(memory, &bytes);
    bool written = filled && size > 0 ? pki_write(path, mode, how, bytes, (size_t)size)
                                      : fail(path, "it cannot be put into PEM");
    BIO_free(memory);
    return written;
}

bool pki_write_key(const char *path, enum pki_write_mode how, EVP_PKEY *key)
{
    BIO *memory = BIO_new(BIO_s_secmem());
    bool filled = memory != NULL && PEM_write_bio_PrivateKey(memory, key, NULL, NULL, 0, NULL, NULL) == 1;
    return write_memory(memory, filled, path, 0600, how);
}

bool pki_write_certificate(const char *path, enum pki_write_mode how, X509 *certificate)
{
    BIO *memory = BIO_new(BIO_s_mem());
    bool filled = memory != NULL && PEM_write_bio_X509(memory, certificate) == 1;
    return write_memory(memory, filled, path, 0644, how);
}

bool pki_write_request(const char *path, X509_REQ *request)
{
    BIO *memory = BIO_new(BIO_s_mem());
    bool filled = memory != NULL && PEM_write_bio_X509_REQ(memory, request) == 1;
    return write_memory(memory, filled, path, 0644, PKI_WRITE_NEW);
}

bool pki_write_revocations(const char *path, X509_CRL *list)
{
    BIO *memory = BIO_new(BIO_s_mem());
    bool filled = memory != NULL && PEM_write_bio_X509_CRL(memory, list) == 1;
    return write_memory(memory, filled, path, 0644, PKI_WRITE_REPLACE);
}
