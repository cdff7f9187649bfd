import os,sys
os.environ["TF_CPP_MIN_LOG_LEVEL"]="3"
import warnings; warnings.simplefilter("ignore")
import numpy as np, tensorflow as tf
v1=getattr(getattr(tf,"compat",None),"v1",tf)
if tf.__version__[0]=="2": v1.disable_eager_execution()
if sys.argv[1]=="tf.keras": keras=tf.keras
else:
    import importlib; keras=importlib.import_module(sys.argv[1])
opt=sys.argv[2] if len(sys.argv)>2 else "SGD"
import legacyga as micro_batching
rs=np.random.RandomState(0)
x=rs.randint(0,20,(72,3)); z=rs.randn(72,4).astype("float32"); y=(rs.rand(72)>.5).astype("float32"); w=rs.rand(72).astype("float32")
def model():
    a=keras.layers.Input((3,),dtype="int32"); b=keras.layers.Input((4,))
    e=keras.layers.Flatten()(keras.layers.Embedding(20,4)(a))
    h=keras.layers.Concatenate()([e,b])
    h=keras.layers.Dense(8,activation="tanh",kernel_regularizer="l2")(h)
    m=keras.models.Model([a,b],keras.layers.Dense(1,activation="sigmoid")(h))
    ns=getattr(keras.optimizers,"legacy",keras.optimizers) if tf.__version__[:4]>"2.10" or tf.__version__[:4]=="2.10" else keras.optimizers
    o=getattr(ns,opt)(lr=.05) if "lr" in __import__("inspect").getfullargspec(getattr(ns,opt).__init__).args else getattr(ns,opt)(.05)
    m.compile(o,"binary_crossentropy",metrics=["accuracy"])
    return m
def go(size):
    keras.backend.clear_session()
    m=model()
    ws=m.get_weights()
    r=np.random.RandomState(1); m.set_weights([r.randn(*v.shape)*.3 for v in ws])
    if size: micro_batching.micro_batch(m,size)
    h=m.fit([x,z],y,batch_size=32,epochs=3,sample_weight=w,shuffle=False,verbose=0)
    o=m.optimizer
    return m.get_weights(),h.history,int(keras.backend.get_value(o.iterations)),[v.shape for v in o.get_weights()] if hasattr(o,"get_weights") else None
a=go(None)
for size in (8,5,32,1,100):
    b=go(size)
    print(size,max(np.abs(p-q).max() for p,q in zip(a[0],b[0])),b[2]==a[2],b[3]==a[3],{k.split("_")[0]:float(np.abs(np.array(b[1][k])-np.array(a[1][ka])).max()) for k,ka in zip(sorted(b[1]),sorted(a[1]))})
