/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* What the programs need of the kernel's interface, and the values that both families share.
 *
 * Only UAPI: no vmlinux.h, no CO-RE, no BTF. Ports and addresses are in network order, as they are in the context.
 * Every struct is without holes, so that its bytes are a key; ../layout.py has the same as struct formats.
 */
#include <linux/bpf.h>
#include <linux/in.h>

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

/* Numbers of helpers are UAPI (enum bpf_func_id). None of these is for programs under the GPL only. */
static void *(*map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*map_update)(void *map, const void *key, const void *value, __u64 flags) =
	(void *)BPF_FUNC_map_update_elem;
static long (*map_delete)(void *map, const void *key) = (void *)BPF_FUNC_map_delete_elem;
static __u64 (*socket_cookie)(void *ctx) = (void *)BPF_FUNC_get_socket_cookie;
static __u32 (*random32)(void) = (void *)BPF_FUNC_get_prandom_u32;
static __u64 (*netns_cookie)(void *ctx) = (void *)BPF_FUNC_get_netns_cookie;
static __u64 (*ancestor_cgroup)(int level) = (void *)BPF_FUNC_get_current_ancestor_cgroup_id;
static void *(*sk_storage)(void *map, void *sk, void *value, __u64 flags) = (void *)BPF_FUNC_sk_storage_get;
static struct bpf_sock *(*lookup_tcp)(void *ctx, struct bpf_sock_tuple *tuple, __u32 size, __u64 netns,
				      __u64 flags) = (void *)BPF_FUNC_sk_lookup_tcp;
static struct bpf_sock *(*lookup_udp)(void *ctx, struct bpf_sock_tuple *tuple, __u32 size, __u64 netns,
				      __u64 flags) = (void *)BPF_FUNC_sk_lookup_udp;
static __u64 (*clock)(void) = (void *)BPF_FUNC_ktime_get_coarse_ns;
static long (*release)(void *sk) = (void *)BPF_FUNC_sk_release;

/* How the loader finds a map's attributes: by the symbol, in the section "maps". */
struct map {
	__u32 type, key_size, value_size, max_entries, flags;
};
#define MAP(name, kind, key, value, entries, how)                                                                  \
	struct map name SEC("maps") = { BPF_MAP_TYPE_##kind, sizeof(key), sizeof(value), entries, how }

/* Who asks: the network namespace of the socket says it. */
enum { NOBODY = 0, NODE = 1, POD = 2 };

/* Flags of a frontend: NODE and POD say whose connections are translated here, all others are nftables'.
 * AS_NODE: the node's own sockets must be seen with the node's address, so those with an address of their own are not.
 * HAS_LOCAL: an endpoint is on this node, and may be the very Pod that asks.
 * LOOSE: of UDP, connected sockets are left out, whatever the settings say.
 */
enum { AS_NODE = 4, HAS_LOCAL = 8, LOOSE = 16 };

/* What says of affinity is above the flags in one word: for how many seconds a client is remembered that stays away,
 * 0: nobody is, and of which Service port.
 */
#define SECONDS_OF(head) ((head) >> 8 & 0x1ffff)
#define PORT_OF(head) ((head) >> 25)

struct frontend {
	__u32 first, slots;
	__u64 head;
};

/* Who is remembered: a network namespace. Which address a socket will have is not known when it connects. */
struct client {
	__u64 netns, service_port;
};

/* What is remembered of a client: nothing, for too long, an endpoint that has gone, that the rules lead it, an endpoint
 * somewhere in the pool, one whose slot is known, and the one that its socket has already. */
enum { NOTHING, OUTDATED, GONE, BY_RULES, SOMEWHERE, AT_SLOT, THE_SAME };
#define NO_INDEX 0xffff

/* Constants to the verifier, written by the loader before it loads. */
struct settings {
	__u64 node;        /* cookie of the node's network namespace */
	__u64 pods_cgroup; /* id of the cgroup in which all Pods are; 0: there is none */
	__u32 pods_level;  /* its depth below the root */
	__u32 listed;      /* whether `clients` says who is a Pod */
	__u32 counting;
	__u32 connected; /* whether connected UDP sockets are given endpoints: somebody ends those whose endpoint goes */
	__u32 affinity, zero; /* whether maps have frontends with affinity */
	__u64 build; /* of which object these programs are; nothing to the programs */
};

/* Keys are built on the stack eight bytes at a time. Verifiers of Linux 5.16 to 6.7 take a number that was written there
 * for a register to be kept, and let nobody without CAP_PERFMON write over a part of it (ab125ed3ec1c has mended that).
 * The assembly keeps the compiler from writing only the part that changes.
 */
typedef __u64 __attribute__((may_alias)) word;

INLINE void put(word *at, __u64 value)
{
	asm volatile("" : "+r"(value));
	*at = value;
}

#define REMEMBERED 4 /* so many Services one unconnected UDP socket may speak with at a time; see tell */
