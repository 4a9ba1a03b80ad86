#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/commctl/pki.h"

static bool fail(const struct pki_file *file, const char *what)
{
    fprintf(stderr, "commctl pki: %s: %s\n", file->path, what);
    return false;
}

/* Moves the file to its place. A file that was there keeps the temporary name until all are in place. */
static bool place(struct pki_file *file)
{
    struct stat old;
    file->existed = lstat(file->path, &old) == 0;
    if (file->existed) {
        if (!S_ISREG(old.st_mode) && !S_ISLNK(old.st_mode)) {
            return fail(file, "not a regular file");
        }
        file->exchanged = renameat2(AT_FDCWD, file->temporary, AT_FDCWD, file->path, RENAME_EXCHANGE) == 0;
        if (file->exchanged) {
            return true;
        }
    }
    /* Some file systems cannot exchange files: there, the old file is lost if a later one fails. */
    return rename(file->temporary, file->path) == 0 || fail(file, strerror(errno));
}

static void undo(const struct pki_file *file)
{
    if (file->exchanged) {
        (void)renameat2(AT_FDCWD, file->temporary, AT_FDCWD, file->path, RENAME_EXCHANGE);
    } else if (!file->existed) {
        unlink(file->path);
    }
}

bool pki_install(struct pki_file *files, size_t count)
{
    bool good = true;
    /* First everything that needs space on the disk. */
    for (size_t i = 0; good && i < count; i++) {
        files[i].existed = files[i].exchanged = files[i].placed = false;
        files[i].staged = good = pki_stage(files[i].path, files[i].mode, files[i].owner, true,
                                           &files[i].content, files[i].temporary);
    }
    for (size_t i = 0; good && i < count; i++) {
        files[i].placed = good = place(&files[i]);
    }
    for (size_t i = count; i-- > 0;) {
        if (!good && files[i].placed) {
            undo(&files[i]);
        }
        if (files[i].staged) {
            unlink(files[i].temporary); /* the old file, or a new one that has no use */
        }
    }
    for (size_t i = 0; good && i < count; i++) {
        char folder[PATH_MAX];
        pki_folder_of(files[i].path, folder);
        pki_sync_folder(folder);
        printf("wrote %s\n", files[i].path);
    }
    return good;
}
