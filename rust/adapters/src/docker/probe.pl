# probe.pl SYNCS SYNC_BYTES READ_BYTES [LOOP_DEVICE...]
# Measures in a file of /volume, which is removed again: see core/src/probe.rs. Tells the times of all
# writes in microseconds, the seconds of both readings, and what the devices did: "flushes bytes_read".
use strict;
use warnings;
use Fcntl;
use IO::Handle;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

my ($syncs, $sync_bytes, $read_bytes, @loops) = @ARGV;
my $path = '/volume/bedplate-probe';
END { unlink $path }
# Numbers of system calls of this architecture; fdatasync and fadvise64 have no name in Perl itself.
my ($fdatasync, $fadvise) = `uname -m` =~ /^aarch64/ ? (83, 223) : (75, 221);
my $DONTNEED = 4;

sub now { clock_gettime(CLOCK_MONOTONIC) }

# The `stat` of the device that holds a path.
sub stat_under {
    my ($path) = @_;
    my $device = (stat $path)[0] // return;
    my $major = ($device >> 8) & 0xfff;
    my $minor = ($device & 0xff) | (($device >> 12) & 0xfff00);
    "/sys/dev/block/$major:$minor/stat";
}

my %stats = (
    devices => [@loops ? map { s{^/dev/}{}r } @loops : stat_under('/volume')],
    backing => [@loops ? stat_under('/backing') : ()],
);
$stats{devices} = [map { "/sys/block/$_/stat" } @{ $stats{devices} }] if @loops;

# Flushes of the device that has most, and bytes that all have read; nothing when one is not seen.
sub look {
    my %seen;
    for my $layer (keys %stats) {
        my ($flushes, $read) = (0, 0);
        for my $path (@{ $stats{$layer} }) {
            open my $stat, '<', $path or undef $read, last;
            my @fields = split ' ', <$stat>;
            @fields > 15 or undef $read, last;
            $flushes = $fields[15] if $fields[15] > $flushes;
            $read += $fields[2] * 512;
        }
        $seen{$layer} = [$flushes, $read] if defined $read and @{ $stats{$layer} };
    }
    \%seen;
}

sub has_cache {
    my $queue = $_[0] =~ s{stat$}{queue/write_cache}r;
    $queue = $_[0] =~ s{stat$}{../queue/write_cache}r unless -e $queue;
    open my $cache, '<', $queue or return 1;
    <$cache> =~ /back/;
}

sub read_all {
    my ($file) = @_;
    my $started = now();
    sysseek $file, 0, 0;
    1 while sysread $file, my $chunk, 1 << 20;
    now() - $started;
}

sysopen my $file, $path, O_RDWR | O_CREAT | O_EXCL, 0600 or die "$path: $!";
open my $random, '<:raw', '/dev/urandom' or die "/dev/urandom: $!";
read $random, my $chunk, 1 << 20;
for (1 .. $read_bytes >> 20) {
    read $random, $chunk, 1 << 20;
    syswrite($file, $chunk) // die "$path: $!";
}
$file->sync or die "$path: $!";

my $before = look();
my @times;
for my $number (0 .. $syncs - 1) {
    my $started = now();
    sysseek $file, $number * $sync_bytes, 0;
    syswrite($file, substr $chunk, $number, $sync_bytes) // die "$path: $!";
    syscall($fdatasync, fileno $file) == 0 or die "fdatasync: $!";
    push @times, (now() - $started) * 1e6;
}
my $written = look();
syscall($fadvise, fileno $file, 0, 0, $DONTNEED) == 0 or die "fadvise: $!";
my $forgotten = look();
my $cold = read_all($file);
my $read_once = look();
my $warm = read_all($file);
print "sync_us=@times\ncold_read_s=$cold\nwarm_read_s=$warm\n";
for my $layer (keys %$before) {
    my $flushes = $written->{$layer}[0] - $before->{$layer}[0];
    # A disk that says it has no volatile cache is sent none; a loop device that says so drops them.
    $flushes = 'none' unless @loops and $layer eq 'devices' or has_cache($stats{$layer}[0]);
    my $bytes = $read_once->{$layer}[1] - $forgotten->{$layer}[1];
    print "$layer=$flushes $bytes\n";
}
