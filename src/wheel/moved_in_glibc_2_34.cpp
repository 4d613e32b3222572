// For the wheel, so that it runs where PyTorch does, from glibc 2.28 on, although it is linked on a
// newer system.
//
// glibc 2.34 moved these functions from libpthread, libdl and librt into libc and gave them a new
// version. It still has the old ones, which are the same code. The CUDA runtime, which is linked
// statically, calls the functions defined here. They jump to the old ones. Where those are in a
// library of their own, libtorch has loaded it.

#ifdef __x86_64__
asm(R"(
.macro moved name, version=GLIBC_2.2.5
.symver old_\name, \name@\version
.globl \name
.hidden \name
.type \name, @function
\name:
  jmp *old_\name@GOTPCREL(%rip)
.size \name, . - \name
.endm

.text
moved dlclose
moved dlerror
moved dlmopen, GLIBC_2.3.4
moved dlopen
moved dlsym
moved dlvsym
moved pthread_condattr_setpshared
moved pthread_create
moved pthread_detach
moved pthread_getspecific
moved pthread_join
moved pthread_key_create
moved pthread_key_delete
moved pthread_kill
moved pthread_mutex_trylock
moved pthread_mutexattr_destroy
moved pthread_mutexattr_init
moved pthread_mutexattr_setpshared
moved pthread_mutexattr_settype
moved pthread_once
moved pthread_rwlock_destroy
moved pthread_rwlock_init
moved pthread_rwlock_rdlock
moved pthread_rwlock_timedrdlock
moved pthread_rwlock_timedwrlock
moved pthread_rwlock_tryrdlock
moved pthread_rwlock_trywrlock
moved pthread_rwlock_unlock
moved pthread_rwlock_wrlock
moved pthread_rwlockattr_destroy
moved pthread_rwlockattr_init
moved pthread_rwlockattr_setpshared
moved pthread_setspecific
moved pthread_spin_destroy
moved pthread_spin_init
moved pthread_spin_lock
moved pthread_spin_trylock
moved pthread_spin_unlock
moved sem_destroy
moved sem_init
moved sem_post
moved sem_timedwait
moved sem_trywait
moved sem_wait
moved shm_open
moved shm_unlink
)");
#endif
