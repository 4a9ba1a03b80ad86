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

void pki_sync_folder(const char *folder)
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

void pki_folder_of(const char *path, char out[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    int length = slash == NULL ? 1 : (int)(slash - path) + 1;
    snprintf(out, PATH_MAX, "%.*s", length, slash == NULL ? "." : path);
}

bool pki_stage(const char *path, mode_t mode, const struct pki_owner *owner, bool replaces,
               const struct pki_bytes *content, char temporary[PKI_TEMPORARY_BYTES])
{
    char folder[PATH_MAX];
    pki_folder_of(path, folder);
    snprintf(temporary, PKI_TEMPORARY_BYTES, "%s/.commctl-XXXXXX", folder);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        return fail(path, strerror(errno));
    }
    /* The descriptor is of a new file, so nobody can make this give away another file. */
    bool owned = owner != NULL ? fchown(fd, owner->uid, owner->gid) == 0 : !replaces || take_owner(fd, path);
    bool written = owned && write_all(fd, content->bytes, content->size) && fchmod(fd, mode) == 0;
    int failure = errno;
    close(fd);
    if (!written) {
        unlink(temporary);
        return fail(path, strerror(failure));
    }
    return true;
}

bool pki_write(const char *path, mode_t mode, const struct pki_owner *owner, enum pki_write_mode how,
               const struct pki_bytes *content)
{
    char temporary[PKI_TEMPORARY_BYTES];
    char folder[PATH_MAX];
    if (!pki_stage(path, mode, owner, how == PKI_WRITE_REPLACE, content, temporary)) {
        return false;
    }
    bool moved = how == PKI_WRITE_NEW ? link(temporary, path) == 0 : rename(temporary, path) == 0;
    int failure = errno;
    if (how == PKI_WRITE_NEW || !moved) {
        unlink(temporary);
    }
    if (!moved) {
        return fail(path, strerror(failure));
    }
    pki_folder_of(path, folder);
    pki_sync_folder(folder);
    printf("wrote %s\n", path);
    return true;
}

/* Takes what OpenSSL has written to memory. */
static bool take_memory(BIO *memory, bool filled, struct pki_bytes *out)
{
    char *bytes = NULL;
    long size = memory == NULL || !filled ? 0 : BIO_get_mem_data(memory, &bytes);
    *out = (struct pki_bytes){.bytes = size > 0 ? malloc((size_t)size + 1) : NULL};
    if (out->bytes != NULL) {
        out->size = (size_t)size;
        memcpy(out->bytes, bytes, out->size);
        out->bytes[out->size] = '\0';
    }
    BIO_free(memory);
    return out->bytes != NULL;
}

bool pki_pem_of_certificate(const X509 *certificate, struct pki_bytes *out)
{
    BIO *memory = BIO_new(BIO_s_mem());
    bool filled = memory != NULL && PEM_write_bio_X509(memory, certificate) == 1;
    return take_memory(memory, filled, out);
}

bool pki_pem_of_request(const X509_REQ *request, struct pki_bytes *out)
{
    BIO *memory = BIO_new(BIO_s_mem());
    bool filled = memory != NULL && PEM_write_bio_X509_REQ(memory, request) == 1;
    return take_memory(memory, filled, out);
}

static bool pki_pem_of_revocations(const X509_CRL *list, struct pki_bytes *out)
{
    BIO *memory = BIO_new(BIO_s_mem());
    bool filled = memory != NULL && PEM_write_bio_X509_CRL(memory, list) == 1;
    return take_memory(memory, filled, out);
}

static bool pem_of_key(const EVP_PKEY *key, struct pki_bytes *out)
{
    BIO *memory = BIO_new(BIO_s_secmem());
    bool filled = memory != NULL && PEM_write_bio_PrivateKey(memory, key, NULL, NULL, 0, NULL, NULL) == 1;
    return take_memory(memory, filled, out);
}

/* Writes the text, and frees it. */
static bool write_pem(bool made, struct pki_bytes *content, const char *path, mode_t mode,
                      const struct pki_owner *owner, enum pki_write_mode how)
{
    bool written =
        made ? pki_write(path, mode, owner, how, content) : fail(path, "it cannot be put into PEM");
    if (made) {
        explicit_bzero(content->bytes, content->size);
    }
    free(content->bytes);
    return written;
}

bool pki_write_key(const char *path, enum pki_write_mode how, const struct pki_owner *owner,
                   const EVP_PKEY *key)
{
    struct pki_bytes content;
    return write_pem(pem_of_key(key, &content), &content, path, 0600, owner, how);
}

bool pki_write_certificate(const char *path, enum pki_write_mode how, const X509 *certificate)
{
    struct pki_bytes content;
    return write_pem(pki_pem_of_certificate(certificate, &content), &content, path, 0644, NULL, how);
}

bool pki_write_request(const char *path, const X509_REQ *request)
{
    struct pki_bytes content;
    return write_pem(pki_pem_of_request(request, &content), &content, path, 0644, NULL, PKI_WRITE_NEW);
}

bool pki_write_revocations(const char *path, const X509_CRL *list)
{
    struct pki_bytes content;
    return write_pem(pki_pem_of_revocations(list, &content), &content, path, 0644, NULL, PKI_WRITE_REPLACE);
}
